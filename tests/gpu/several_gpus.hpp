#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>

#include "kernels/measure/ranks/group.hpp"
#include "kernels/measure/ranks/launch.hpp"
#include "kernels/measure/sessions/trial.hpp"
#include "kernels/measure/timing/watchdog.hpp"
#include "tests/gpu/device.hpp"

namespace moesim::kernels {

// Calls `work` on each of the first `count` GPUs, a thread each, as `moesim profile` does. A phase
// of it that lasts 40 s, or goes on beside a rank that failed, ends the process with where it
// is: no other test can follow an exchange that never ends. Checks belong behind it, in the thread
// of the test.
inline void on_gpus(int count,
                    const std::function<void(measure::Group&, const measure::OnPhase&)>& work) {
  measure::run_in_threads(count, [&](measure::Group& group) {
    measure::WatchdogOptions options;
    options.who = "GPU " + std::to_string(group.rank()) + " of " + std::to_string(group.size());
    options.silence_s = 20;
    options.stall_s = 40;
    options.lost = [&group] { return group.lost(); };
    options.awaited = [&group] { return group.awaited(); };
    options.tell = [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); };
    options.give_up = [](const std::string& where, ExitCode code) {
      std::fprintf(stderr, "%s\n", where.c_str());
      ::_exit(static_cast<int>(code));
    };
    measure::Watchdog dog(options);
    const auto phase = [&dog](const std::string& name) { dog.phase(name); };
    phase("start");
    MOESIM_CUDA(cudaSetDevice(group.rank()));
    work(group, phase);
  });
}

// Why there are not so many GPUs here; empty if there are. The first call of CUDA, where gpu-check
// runs the cases with the tag [gpus] in a process of their own.
inline std::string too_few_gpus(int count) {
  measure::load_kernels_early(std::min(count, measure::visible_gpus(measure::process_environment)));
  const std::string reason = no_device();
  if (!reason.empty()) return reason;
  const int here = gpus_here();
  if (here >= count) return "";
  return "it needs " + std::to_string(count) + " GPUs, here is " + std::to_string(here);
}

}  // namespace moesim::kernels

#define MOESIM_NEEDS_GPUS(count)                                       \
  do {                                                                 \
    const std::string reason = ::moesim::kernels::too_few_gpus(count); \
    if (!reason.empty()) MOESIM_SKIP(reason);                          \
  } while (false)
