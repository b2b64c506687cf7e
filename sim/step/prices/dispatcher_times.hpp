#pragma once

#include <string>

#include "sim/network/exchange/dispatch_place.hpp"
#include "sim/network/exchange/measured_dispatch.hpp"
#include "sim/profile/dispatch_copies.hpp"
#include "sim/profile/dispatcher.hpp"
#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/scenario/scenario.hpp"

namespace moesim::step {

// The exchanges of a step whose rows a dispatcher carries (--dispatcher): the time of its law for
// the busiest GPU, port, NIC and expert of each group, from the rows that routing keeps. A library
// that sends padding does not exist here: rows that capacity drops or leaves empty do not travel.
class DispatcherTimes {
 public:
  // Refers to the scenario, which has a dispatcher and several GPUs to a group.
  explicit DispatcherTimes(const scenario::Scenario& scenario);

  // The load of one expert-parallel group (or the one that stands for all). Where routing is
  // counts, copies are those of profile::CopiesLaw, in whole rows.
  profile::DispatchLoad load(const routing::LayerRouting& layer, int group,
                             profile::DispatcherStage stage) const;

  // The kernel, on as many SMs as training libraries give it where the step trains, and its notify
  // phases, of bf16 rows; over links and NICs that have 1 / `slower` of their bandwidth.
  profile::Estimate time(const routing::LayerRouting& layer, int group,
                         profile::DispatcherStage stage, double slower = 1) const;

  std::string provenance() const;

 private:
  int sms() const;
  routing::TokenCopies copies_of(const routing::LayerRouting& layer, int group) const;

  const scenario::Scenario& scenario_;
  network::DispatchPlace place_;
  network::MeasuredDispatcher measured_;
  profile::CopiesLaw to_gpus_, to_nodes_;
};

}  // namespace moesim::step
