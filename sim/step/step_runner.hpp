#pragma once

#include <memory>
#include <optional>

#include "sim/engine/engine.hpp"
#include "sim/step/exchanges/exchange_links.hpp"
#include "sim/step/exchanges/network_choice.hpp"
#include "sim/step/step_model.hpp"

namespace moesim::step {

// Simulates replicas of a step with the network and the conditions of its scenario.
//
// `auto`: as choose_network() does. `fast`: each exchange takes the time it would take alone,
// whatever else is in progress: for equal blocks the measured time or the time of its busiest link,
// for uneven blocks the time of PortClock on ExchangeLinks. `flows`: the all-to-alls of MoE layers
// are exact flows over ExchangeLinks; groups share these links. Curve errors of the all-to-all
// scale all links.
class StepRunner {
 public:
  // Keeps a reference to `model`. Throws UsageError if the job does not fit on the cluster.
  explicit StepRunner(StepModel& model);

  // `routing` may be null for a model without MoE layers. `replica` selects the jitter; `errors`
  // the curve errors: a replica or StepModel::no_errors.
  engine::Execution run(const routing::ReplicaRouting* routing, int replica, int errors);

  // The network in use: fast or flows.
  scenario::Network used() const { return choice_.used; }
  const NetworkChoice& choice() const { return choice_; }

 private:
  engine::Execution run(const routing::ReplicaRouting* routing, const engine::Durations& durations,
                        int errors);
  engine::Execution run_uneven(const routing::ReplicaRouting& routing,
                               const engine::Durations& durations, int errors);
  engine::Execution run_equal_flows(const routing::ReplicaRouting& routing,
                                    const engine::Durations& durations, int errors);
  ExchangeLinks& links_at(double block);
  int first_exchange(const routing::ReplicaRouting& routing) const;

  StepModel& model_;
  NetworkChoice choice_;
  bool exchanges_ = false;  // there are all-to-alls of MoE layers
  std::optional<ExchangeLinks> links_;
};

}  // namespace moesim::step
