#pragma once

#include <array>
#include <vector>

#include "sim/model/memory/training_exchanges.hpp"
#include "sim/network/exchange/exchange_model.hpp"
#include "sim/profile/moe_exchange_law.hpp"
#include "sim/training/job/training_job.hpp"

namespace moesim::training {

// Rows of one MoE layer and micro-batch over balance, which is k per token of a rank. 1: balanced.
struct MoeLoad {
  double computed = 1;   // by the experts of the busiest rank
  double exchanged = 1;  // sent or received by the busiest rank, whichever is more

  bool operator==(const MoeLoad&) const = default;
};

// How the ranks of an exchange of experts, slices among them, lie on NVLink domains: of all groups
// those that touch most. Precondition: job.cluster.
profile::DispatchGroup dispatch_spread(const TrainingJob& job);

// What the exchanges of a job take, in microseconds: the curves of the node and the law between
// nodes for collectives, the laws of dispatchers. A group of a kind is the one that crosses most
// domains.
class ExchangePrices {
 public:
  explicit ExchangePrices(const TrainingJob& job);

  // `bytes` as nccl-tests counts them; 0 for groups of one rank.
  double exchange_us(profile::Collective kind, parallel::GroupKind group, double bytes) const;
  // Among the members of a group that share states (StateRules::optimizer_instances), and among
  // those of all instances that have the same share.
  double inside_instance_us(profile::Collective kind, parallel::GroupKind group,
                            double bytes) const;
  double across_instances_us(profile::Collective kind, parallel::GroupKind group,
                             double bytes) const;
  // The hidden vectors of a micro-batch, so many of each token, from one pipeline rank to another;
  // 0 to itself.
  double boundary_us(int from, int to, int hidden_states = 1) const;
  // The rows of an MoE layer, to their experts or back.
  double dispatch_us(profile::MoeStage stage, const MoeLoad& load) const;

  // What of the cluster's measured exchanges those of a group go by; "": none.
  std::string measured(profile::Collective kind, parallel::GroupKind group) const;

  // Whether members of a group of the kind lie in several domains, so that NICs carry its
  // exchanges.
  bool crosses_domains(parallel::GroupKind group) const;

  // Of a layer's exchanges but those of rows.
  struct Times {
    double tensor_us = 0;
    double expert_tensor_us = 0;
    double context_us = 0;
    double ring_us = 0;  // of context ranks, which computation may hide
  };
  Times times(const model::TrainingExchanges& exchanges) const;
  model::ExchangeQuery query() const;

 private:
  const std::vector<int>& members(parallel::GroupKind kind) const;
  double among(profile::Collective kind, const std::vector<int>& members, double bytes) const;

  const TrainingJob& job_;
  network::ExchangeModel network_;
  profile::MoeTraffic traffic_;
  std::array<std::vector<int>, parallel::group_names.size()> members_;
};

}  // namespace moesim::training
