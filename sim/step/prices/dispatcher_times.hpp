#pragma once

#include <string>

#include "sim/network/exchange/dispatch_place.hpp"
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

  // Of one expert-parallel group (or the one that stands for all). Rows per node: on dispatch each
  // GPU stages its rows for every node and, as the one in a source's place, forwards to the GPUs of
  // its own; it copies what it forwards or receives, whichever is more. On combine it copies what
  // it received to the forwarding GPU, and what comes to it into sums.
  profile::DispatchLoad load(const routing::LayerRouting& layer, int group,
                             profile::MoeStage stage) const;
  // Where routing is counts, the experts of a token are taken for independent, but that none is
  // chosen twice: of T tokens, n_e to expert e, T (1 - product of (1 - n_e / T)) go to a place,
  // times what that is off for equal n_e.

  // The kernel and its notify phases, of bf16 rows; over links and NICs that have 1 / `slower` of
  // their bandwidth.
  profile::Estimate time(const routing::LayerRouting& layer, int group, profile::MoeStage stage,
                         double slower = 1) const;

  std::string provenance() const;

 private:
  struct Rows;
  routing::TokenCopies copies_of(const routing::LayerRouting& layer, int group) const;
  void copies_per_place(const routing::TokenCopies& copies, int group, profile::MoeStage stage,
                        profile::DispatchLoad& load) const;
  void copies_per_expert(const routing::LayerRouting& layer, int group,
                         profile::DispatchLoad& load) const;

  const scenario::Scenario& scenario_;
  network::DispatchPlace place_;
  profile::Dispatcher dispatcher_;  // as the cluster's own measurements show it
};

}  // namespace moesim::step
