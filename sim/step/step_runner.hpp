#pragma once

#include <memory>
#include <optional>

#include "sim/engine/engine.hpp"
#include "sim/network/topology.hpp"
#include "sim/step/network_choice.hpp"
#include "sim/step/step_model.hpp"

namespace moesim::step {

// Simulates replicas of a step on the network and under the conditions of its scenario.
//
// `auto`: fast where that is certified, else flows (network_choice.hpp).
// `fast`: each exchange takes its time alone, as measured or as its busiest link needs, whatever
// else is under way.
// `flows`: the all-to-alls of MoE layers are exact flows over the links of the cluster and share
// them, group with group. The links inside a domain, switches too, are scaled so that a dispatch
// among all its members takes the time of the profile's curve, that of the smallest size being
// latency; the links between domains are those of the document. Curve errors of the all-to-all
// scale all links.
class StepRunner {
 public:
  // Refers to `model`. Throws UsageError where the cluster has no place for the job.
  explicit StepRunner(StepModel& model);

  // `routing` may be null for a model without MoE layers. `replica` draws jitter; `errors` those of
  // the curves, a replica or StepModel::no_errors.
  engine::Schedule run(const routing::ReplicaRouting* routing, int replica, int errors);

  // Which network was used: fast or flows.
  Network used() const { return choice_.used; }
  const NetworkChoice& choice() const { return choice_; }

 private:
  engine::Schedule run_flows(const routing::ReplicaRouting& routing,
                             const engine::Durations& durations, int errors);
  double exchange_error(const routing::ReplicaRouting& routing, const engine::Durations& durations,
                        int errors);
  void prepare_links(std::int64_t capacity);
  void calibrate_inside(std::int64_t capacity);

  StepModel& model_;
  NetworkChoice choice_;
  int first_exchange_ = -1;  // operation: the first dispatch, -1: none
  std::optional<network::Topology> links_;
  std::int64_t links_capacity_ = 0;  // that the links are calibrated at
};

}  // namespace moesim::step
