#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/cell.hpp"
#include "sim/training/step/training_step.hpp"
#include "sim/uncertainty/step_errors.hpp"
#include "tools/moesim/command.hpp"

namespace moesim::tool {

// A step beside one that `train` predicted before, on the same machine, cluster and software,
// whose errors cancel.
struct BaselineRatio {
  std::string path;
  double speed = 1;  // tokens per second and GPU over the baseline's
  bool same_model = true;
  double distance = 0;       // uncertainty::step_distance(); far_apart where the file does not tell
  bool of_capacity = false;  // both padded, and they differ in router and capacity alone
  uncertainty::Band band;    // of log(measured / predicted ratio)

  // The widest level at which 1 lies outside the band; nothing where it lies inside all of them.
  std::optional<double> beyond_noise() const;
};

struct TrainBand;

// --baseline FILE: what `train --format csv` or json wrote, held against `step`, which `answer` has
// scaled by its document.
// Throws UsageError naming the file: no such output, more than one row, another machine or cluster,
// another published software, one step calibrated and the other not by the same document.
BaselineRatio requested_baseline(const std::string& path, const training::TrainingJob& job,
                                 const training::TrainingStep& step, const TrainBand& answer);

std::string baseline_text(const BaselineRatio& ratio);
std::vector<std::pair<std::string, Cell>> baseline_cells(const BaselineRatio& ratio);

}  // namespace moesim::tool
