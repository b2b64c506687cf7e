#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/measure/devices/machine.hpp"
#include "kernels/measure/ranks/launch.hpp"
#include "kernels/measure/sessions/runner.hpp"
#include "sim/base/error.hpp"

namespace moesim::kernels::measure {

// A run of `moesim profile` from the GPUs to the written profile.
struct SessionOptions {
  std::string out;   // the profile; its points with all samples go beside it
  std::string name;  // "": from the device's name
  std::string base;
  Selection selection;      // its number of GPUs is set by the session
  std::optional<int> gpus;  // of one process; absent: all of them
  std::uint64_t seed = 1;
  double timeout_s = 0;
  bool resume = false;
  Launch launch;
  std::string tool_version;
  std::string commit;
  std::vector<std::string> arguments;
  TrialOptions trial;
  double silence_s = 30;
  double stall_s = 180;  // a phase of a point that lasts longer hangs
  double lost_s = 10;    // after a rank died the others' phase may last so long
  double grace_s = 15;   // after the run's own limit a rank that still hangs is given up
  const std::atomic<bool>* interrupted = nullptr;
  std::function<void(const RunProgress&)> on_progress;        // rank 0 only, one thread
  std::function<void(const std::string&)> on_note;            // any thread
  std::function<void(const std::string&, ExitCode)> give_up;  // it hangs: ends the process
};

struct SessionReport {
  RunReport run;
  std::string profile_path;  // "" on ranks other than 0, and if no point was measured
  std::string raw_path;
  std::size_t points = 0;  // valid ones in the profile
  std::vector<Missing> missing;
};

// "node.json" -> "node.raw.json".
std::string raw_path_of(const std::string& out);

// Measures and writes. One process drives all its GPUs, one thread each; ranks started by a
// launcher drive one each. After a timeout or an interrupt what was measured is written all the
// same, and so it is before an Error is thrown for a device or a rank that failed.
SessionReport profile_node(Machine& machine, const SessionOptions& options);

}  // namespace moesim::kernels::measure
