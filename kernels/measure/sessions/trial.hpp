#pragma once

#include <functional>
#include <string>

#include "kernels/measure/devices/device.hpp"
#include "kernels/measure/ranks/group.hpp"

namespace moesim::kernels::measure {

struct TrialOptions {
  WarmUpRule warm_up;
  StoppingRule kernels = StoppingRule::for_kernels();
  StoppingRule collectives = StoppingRule::for_collectives();
  // The most seconds of the warm-up, and of the samples, for exchanges of ranks that share a GPU,
  // whose times calibrate nothing.
  double shared_gpu_most_s = 1;
  ClockFilter clock;
  // One hot sample lasts at least this long, in as many calls as that takes.
  double hot_sample_us = 1000;
  std::size_t most_hot_calls = 2000;
  // Hot samples are calls by the hundred: fewer of them do.
  StoppingRule hot = [] {
    StoppingRule rule;
    rule.fewest = 14;
    rule.most = 400;
    rule.most_s = 5;
    return rule;
  }();
};

// Told what the trial does, for the watchdog: "warm-up", "cold", "hot", "verify".
using OnPhase = std::function<void(const std::string&)>;

// Measures one point: verified, warmed up, timed cold and hot, verified again. With several ranks a
// sample is the slowest rank's time, and rank 0 decides when it is enough. A point whose
// verification fails is void: it comes back with the reason and no figures. Throws what the device
// throws.
Point measure_point(Device& device, Group& group, const PointSpec& spec, const std::string& suite,
                    std::uint64_t seed, const TrialOptions& options = {},
                    const OnPhase& on_phase = {});

}  // namespace moesim::kernels::measure
