#pragma once

#include <string>
#include <vector>

#include "sim/engine/program.hpp"
#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/scenario/scenario.hpp"
#include "sim/step/kernels/kernels.hpp"
#include "sim/step/prices/prices.hpp"
#include "sim/step/program/step_program.hpp"
#include "sim/step/step_durations.hpp"

namespace moesim::step {

// One training or inference step of a scenario: its program, the prices of its operations, and
// their durations with the routing of a replica.
class StepModel {
 public:
  explicit StepModel(const scenario::Scenario& scenario, const Calibration& calibration = {});
  StepModel(const StepModel&) = delete;  // program and prices refer to the scenario inside
  StepModel& operator=(const StepModel&) = delete;

  const scenario::Scenario& scenario() const { return scenario_; }
  const engine::Program& program() const { return program_.program(); }

  // Durations of one replica: with equal blocks where the router pads them, else by rows. In a
  // layer that skips the exchange, its all-to-alls and the exchanges of sizes before them are
  // skipped, and so are the all-to-alls of rectified rows in a layer without such rows. `routing`
  // may be null for a model without MoE layers. `replica` >= 0 selects the curve errors of that
  // replica (CurveErrors), no_errors the median of every curve.
  static constexpr int no_errors = CurveErrors::none;
  engine::Durations durations(const routing::ReplicaRouting* routing, int replica);
  // Lengthens gradients that are reduced beside the backward pass by what they lose to it
  // (overlapped_gradients.hpp), when all else that changes `durations` has done so.
  std::vector<engine::LostTime> slow_gradients(engine::Durations& durations, int replica);

  // For tests and benchmarks, the result of durations() without padding: each GPU dispatches the
  // rows it keeps, each expert computes the rows it receives, and the all-to-alls are timed by
  // their matrices (UnpaddedTraffic), so their durations are 0. `routing` needs kept_rows, of all
  // GPUs or of one expert-parallel group that represents all groups, copies where the scenario
  // deduplicates, and ir_rows with rectification. Permutation moves one row per expert even where
  // rows are deduplicated. Throws UsageError for options that need equal blocks (--dispatch einsum,
  // --ir-compute grouped), Error for counts of another shape.
  engine::Durations unpadded_durations(const routing::ReplicaRouting& routing, int replica) {
    return durations_.unpadded(routing, replica);
  }

  // [operation][group] the share of an exchange's time that is latency, which slow links do not
  // change; one number where it is the same in all groups. None for compute, and where the scenario
  // has no slow links.
  std::vector<std::vector<double>> latency_shares(const routing::ReplicaRouting* routing) {
    return durations_.latency_shares(routing);
  }

  // The all-to-all of an MoE layer that an operation performs, if any.
  using Direction = step::Direction;
  Direction direction(int operation) const { return program_.direction(operation); }
  // Index among the MoE layers, -1: no such operation.
  int moe_layer(int operation) const { return program_.operation(operation).moe_layer; }
  // The per-rank buffer of a collective other than that, as in nccl-tests; 0: no collective.
  double collective_bytes(int operation) const { return program_.operation(operation).bytes; }
  double row_bytes() const;
  // Bytes of a row in that all-to-all: a token, or its probability alone.
  double row_bytes(int operation) const;
  // What a communication operation sends elements of, as PyTorch names types, and their bytes.
  struct Element {
    const char* name = "BFloat16";
    double bytes = 2;
  };
  Element element(int operation) const;
  bool gathers(int operation) const {
    return program_.operation(operation).collective == profile::Collective::all_gather;
  }
  // The factor by which the curve errors of a replica change the time of an all-to-all: of an even
  // one without padding, and of a GPU's operation in equal blocks.
  double exchange_error(int replica) { return error_of(even_exchange(), replica); }
  double exchange_error(int operation, int gpu, const routing::ReplicaRouting& routing,
                        int replica);
  // The curves that price an operation of a GPU, and its time with the errors of a replica. Of
  // unpadded all-to-alls those of an even one, of a GPU's experts those of its busiest: in
  // proportion to the true time. Null: none. Valid until the next call.
  struct CurveParts {
    const std::vector<CurvePart>* parts = nullptr;
    double time_us = 0;
  };
  CurveParts curve_parts(int operation, int gpu, const routing::ReplicaRouting* routing,
                         int replica);
  // The factor on the profile's curves for exchanges of the software.
  double exchange_multiplier() const { return prices_.multiplier(KernelClass::exchange); }

  // What the prices are based on: the weakest origin and support per class of kernel, then the
  // costs that are assumed for the kind of router. Complete once durations() has been called for
  // each replica.
  std::string provenance() const;

 private:
  std::string assumptions() const;
  PricedWork& even_exchange();
  bool is_by_matrix(int operation) const;  // an all-to-all that unpadded() leaves 0
  double error_of(PricedWork& work, int replica) const;

  scenario::Scenario scenario_;
  StepProgram program_;
  Prices prices_;
  StepDurations durations_;
};

}  // namespace moesim::step
