#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/cell.hpp"
#include "sim/training/step/training_step.hpp"
#include "sim/uncertainty/published/step_errors.hpp"
#include "sim/uncertainty/software/step_software.hpp"
#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// A step beside one that `train` predicted before, with the same software, whose error cancels: on
// the same machine, on its GPUs in another cluster, or, of the same model, on another machine.
struct BaselineRatio {
  std::string path;
  // "b200-sxm on hgx-b200" and "h200-sxm on hgx-h200", where the two are not on one cluster.
  std::string here, there;
  bool is_per_gpu = false;  // the two have different numbers of GPUs, which here and there say
  double speed = 1;         // tokens per second and GPU over the baseline's
  uncertainty::Band band;   // of log(measured / predicted ratio)
  std::string known_by;     // "17 groups of pairs of steps on one machine, ..."

  // The widest level at which 1 lies outside the band; nothing where it lies inside all of them.
  std::optional<double> beyond_noise() const;
};

struct TrainBand;

// --baseline FILE: what `train --format csv` or json wrote, held against `step`, which `answer` has
// scaled by its document, `own_software`; null: of published software. What the fit of a document
// leaves open of the ratio counts in the place of published pairs. Two padded steps that differ in
// router and capacity alone are compared by such pairs, but where one's own steps say more.
// On two clusters of one kind of GPU the kernels and the software are the same: their links count
// (uncertainty::link_deviation()), and, where more than the cluster differs, pairs of steps. On two
// kinds of GPU: StepErrors::machine_ratio_band(). There a software that is not named is assumed to
// be the same program on both.
// Throws UsageError naming the file: no such output, more than one row, another published software,
// one step calibrated and the other not by the same document; on another machine or cluster also
// two models, two profiles of one GPU, a calibrated step.
BaselineRatio requested_baseline(const std::string& path, const training::TrainingJob& job,
                                 const training::TrainingStep& step, const TrainBand& answer,
                                 const uncertainty::StepSoftware* own_software);

std::string baseline_text(const BaselineRatio& ratio);
std::vector<std::pair<std::string, Cell>> baseline_cells(const BaselineRatio& ratio);

}  // namespace moesim::tool
