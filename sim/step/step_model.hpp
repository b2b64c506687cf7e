#pragma once

#include <string>
#include <vector>

#include "sim/engine/program.hpp"
#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/scenario/scenario.hpp"
#include "sim/step/kernels.hpp"
#include "sim/step/prices.hpp"
#include "sim/step/step_durations.hpp"
#include "sim/step/step_program.hpp"

namespace moesim::step {

// One training or inference step of a scenario: its program, the prices of its operations, and how
// long these take with the routing of a replica.
class StepModel {
 public:
  explicit StepModel(const scenario::Scenario& scenario, const Calibration& calibration = {});
  StepModel(const StepModel&) = delete;  // program and prices refer to the scenario inside
  StepModel& operator=(const StepModel&) = delete;

  const scenario::Scenario& scenario() const { return scenario_; }
  const engine::Program& program() const { return program_.program(); }

  // Durations of one replica: with equal blocks where the router pads them, else by rows. In a
  // layer that skips the exchange the all-to-alls and what announces them are skipped, and so are
  // those of rectified rows in a layer without any. `routing` may be null for a model
  // without MoE layers. `replica` >= 0 takes the curves' errors of that replica (CurveErrors),
  // no_errors every curve at its median.
  static constexpr int no_errors = CurveErrors::none;
  engine::Durations durations(const routing::ReplicaRouting* routing, int replica);

  // What durations() gives where nothing is padded: each GPU dispatches the rows it keeps, each
  // expert computes the rows that come, and the all-to-alls take the time of their matrices
  // (UnpaddedTraffic); their durations are left 0. `routing` needs kept_rows, of all GPUs or of one
  // expert-parallel group that stands for all, copies where the scenario deduplicates, and ir_rows
  // under rectification. Permutation is of a row per expert even then. Throws UsageError
  // for what needs equal blocks (--dispatch einsum, --ir-compute grouped), Error for counts of
  // another shape.
  engine::Durations unpadded_durations(const routing::ReplicaRouting& routing, int replica) {
    return durations_.unpadded(routing, replica);
  }

  // [operation] the share of an exchange's time that is latency: what slow links leave as it is. 0
  // for compute, and where the scenario has no slow links.
  std::vector<double> latency_shares(const routing::ReplicaRouting* routing) {
    return durations_.latency_shares(routing);
  }

  // The all-to-all of an MoE layer that an operation is, if it is one.
  using Direction = step::Direction;
  Direction direction(int operation) const { return program_.direction(operation); }
  // Ordinal among MoE layers, -1: of none.
  int moe_layer(int operation) const { return program_.operation(operation).moe_layer; }
  double row_bytes() const;
  // Of a row in that all-to-all: a token, or its probability alone.
  double row_bytes(int operation) const;
  // How many times longer the curves' errors of a replica make the all-to-alls.
  double exchange_error(int replica);
  // How much longer exchanges take in the software of the profile than its curves say.
  double exchange_multiplier() const { return prices_.multiplier(KernelClass::exchange); }

  // What the prices are based on: the weakest origin and support per class of kernel, then the
  // costs that are assumed of the router's kind. Complete once durations() has been called for each
  // replica.
  std::string provenance() const;

 private:
  std::string assumptions() const;

  scenario::Scenario scenario_;
  StepProgram program_;
  Prices prices_;
  StepDurations durations_;
};

}  // namespace moesim::step
