#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/measure/devices/machine.hpp"
#include "kernels/measure/sessions/trial.hpp"
#include "kernels/measure/suites/layer_points.hpp"
#include "sim/base/error.hpp"

namespace moesim::kernels::measure {

struct LayerSessionOptions {
  std::string out;    // written whole after each layer; "": nowhere
  std::string model;  // where the size is from
  LayerSize size;
  std::vector<LayerCase> cases = layer_cases();
  std::uint64_t seed = 1;
  double timeout_s = 0;  // no layer is begun after that; 0: no limit
  TrialOptions trial;
  std::function<std::string()> now;  // ISO 8601, UTC
  double silence_s = 30;
  double stall_s = 180;  // a phase of a layer that lasts longer hangs
  double lost_s = 10;    // after a rank failed the others' phase may last so long
  // "layer router=top2 ...", what went wrong, and, from any thread, where a rank has been for long.
  std::function<void(const std::string&)> on_note;
  std::function<void(const std::string&, ExitCode)> give_up;  // it hangs: ends the process
};

struct LayerSessionReport {
  nlohmann::ordered_json document;  // profiles/schema/measured-layer.schema.json
  std::size_t voided = 0;           // layers whose results were wrong
  std::size_t missing = 0;          // that did not fit or cannot be measured, or were late
  std::size_t late = 0;             // for which there was no time
};

// Measures each case forward and backward on size.gpus GPUs of this process, one thread each, all
// of them one expert-parallel group. Throws UsageError if there are fewer GPUs or a case cannot be,
// and what a lost device throws; layers measured before are in `out`.
LayerSessionReport measure_layers(Machine& machine, const LayerSessionOptions& options);

}  // namespace moesim::kernels::measure
