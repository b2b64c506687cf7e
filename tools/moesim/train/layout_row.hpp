#pragma once

#include "sim/scenario/scenario.hpp"
#include "sim/training/step/training_step.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/rows/named_cells.hpp"

namespace moesim::tool {

// --ir-compute of a training step: rectified rows are computed with those that came.
inline constexpr const char* rectified_with = "grouped";

// The scenario with the model and the routing of a line, else with the defaults; not checked.
scenario::Scenario scenario_of(const CommandLine& line);

// The row of a training step in the columns of `simulate` and `sweep`, in their order, and behind
// them those of training_row() that these do not have.
//
//   parts      sum to step_ms with bubble_ms (and sends between stages) and host_ms. router_ms has
//              permutation too, gradient_ms the gathering of weights, exposed_exchange_ms what
//              tensor, context and expert ranks exchange, other_ms head, recomputation, copies to
//              the host and reruns.
//   step_ms_p05, _p50, _p95
//              what a measurement is expected to say. Where too few groups of measured steps are
//              known for 90 %, the ends of the widest band, stretched to 90 % as a normal's.
//   memory     of the pipeline rank that has most; logits are activations.
//
// `line`: its options of routing that a job does not have, and how many replicas there are. Throws
// Error for options of routing that cannot be.
NamedCells layout_row(const CommandLine& line, const training::TrainingJob& job,
                      const training::TrainingStep& step, const TrainBand& band);

}  // namespace moesim::tool
