#pragma once

#include <array>
#include <vector>

#include "sim/model/memory/training_exchanges.hpp"
#include "sim/network/exchange/dispatch_place.hpp"
#include "sim/network/exchange/exchange_model.hpp"
#include "sim/profile/moe_exchange_law.hpp"
#include "sim/training/job/training_job.hpp"
#include "sim/training/prices/moe_load.hpp"

namespace moesim::training {

// Of the pipeline ranks that have the weights of a stage (ShardSizes::stage_copies), which
// exchange: those of one copy, or all.
enum class StageCopies { one, all };

// What the exchanges of a job take, in microseconds: the curves of the node and the law between
// nodes for collectives, the laws of dispatchers. A group of a kind is the one that crosses most
// domains.
class ExchangePrices {
 public:
  explicit ExchangePrices(const TrainingJob& job);

  // `bytes` as nccl-tests counts them; 0 for groups of one rank.
  double exchange_us(profile::Collective kind, parallel::GroupKind group, double bytes) const;
  // Among the members of a group that share states (StateRules::optimizer_instances), and among
  // those of all instances that have the same share. An instance has ranks of all copies of a
  // stage.
  double inside_instance_us(profile::Collective kind, parallel::GroupKind group, double bytes,
                            StageCopies copies = StageCopies::one) const;
  double across_instances_us(profile::Collective kind, parallel::GroupKind group,
                             double bytes) const;
  // Between the members of both copies of a stage that have the same place; 0 of one copy.
  double between_copies_us(profile::Collective kind, parallel::GroupKind group, double bytes) const;
  // The hidden vectors of a micro-batch, so many of each token, from one pipeline rank to another;
  // 0 to itself.
  double boundary_us(int from, int to, int hidden_states = 1) const;
  // The rows of an MoE layer, to their experts or back, with those that are rectified in a domain.
  double dispatch_us(profile::MoeStage stage, const MoeLoad& load) const;

  // What of the cluster's measured exchanges those of a group go by, of all copies of a stage; "":
  // none.
  std::string measured(profile::Collective kind, parallel::GroupKind group) const;

  // Where the times of the job's dispatcher come from, and its SMs, as
  // network::dispatch_provenance() has it; "": none, or it has nothing to exchange.
  std::string dispatcher_provenance() const;

  // Whether members of a group of the kind, of all copies of a stage, lie in several domains, so
  // that NICs carry its exchanges.
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
  const std::vector<int>& members(parallel::GroupKind kind,
                                  StageCopies copies = StageCopies::one) const;
  double all_to_all_us(profile::MoeStage stage, const MoeLoad& load) const;
  bool exchanges_rows() const;
  network::DispatchPlace dispatch_place() const;
  double kernel_us(profile::MoeStage stage, const DispatchedLoad& load) const;
  double rectified_us(double rows) const;
  double among(profile::Collective kind, const std::vector<int>& members, double bytes) const;

  const TrainingJob& job_;
  network::ExchangeModel network_;
  profile::MoeTraffic traffic_;
  profile::DispatchGroup dispatch_group_;  // of a job with a dispatcher
  std::array<std::vector<int>, parallel::group_names.size()> members_;
  // Of kinds that have replicas of weights: members of one copy of a stage, then of the other.
  std::array<std::vector<int>, parallel::group_names.size()> of_both_copies_;
};

}  // namespace moesim::training
