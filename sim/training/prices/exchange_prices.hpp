#pragma once

#include <array>
#include <vector>

#include "sim/model/memory/training_exchanges.hpp"
#include "sim/network/exchange/dispatch_place.hpp"
#include "sim/network/exchange/exchange_model.hpp"
#include "sim/profile/moe_exchange_law.hpp"
#include "sim/training/job/training_job.hpp"
#include "sim/training/prices/moe_load.hpp"
#include "sim/training/prices/passes.hpp"

namespace moesim::training {

// Which of the ranks that have the weights of a stage exchange gradients or weights. DualPipe has
// copies of a stage on two pipeline ranks (ShardSizes::stage_copies); optimizer instances are those
// of StateRules::optimizer_instances.
enum class Replicas {
  instance_of_copy,    // members of an optimizer instance in one copy of the stage
  instance,            // in all copies
  shard_of_copies,     // those of both copies that have the same place
  shard_of_instances,  // those of all instances that have the same share
};

// What the exchanges of a job take, in microseconds: the curves of the node and the law between
// nodes for collectives, the laws of dispatchers. A group of a kind is the one that crosses most
// domains.
class ExchangePrices {
 public:
  explicit ExchangePrices(const TrainingJob& job);

  // `bytes` as nccl-tests counts them; 0 for groups of one rank.
  double exchange_us(profile::Collective kind, parallel::GroupKind group, double bytes) const;
  // The exchange of gradients or weights among replicas; 0 where there are fewer than two. An
  // instance is the one that touches most domains.
  double replicas_us(profile::Collective kind, parallel::GroupKind group, Replicas replicas,
                     double bytes) const;
  bool replicas_cross_domains(parallel::GroupKind group, Replicas replicas) const;
  // The part of a pass that can hide exchanges of replicas in one domain, or of some that `cross`
  // domains: all but the exchanges of other groups on the same links.
  double hiding_us(const PartTimes& pass, bool cross) const;
  // The same of Passes::input_gradient, whose recomputation may exchange on these links.
  double hiding_input_gradient_us(const Passes& passes, bool cross) const;
  // The hidden vectors of a micro-batch, so many of each token, from one pipeline rank to another;
  // 0 to itself.
  double boundary_us(int from, int to, int hidden_states = 1) const;
  // The rows of an MoE layer, to their experts or back, with those that are rectified in a domain.
  double dispatch_us(profile::DispatcherStage stage, const MoeLoad& load) const;
  // The gradients of what a stage carries. But of gathered tokens they are priced as the other
  // stage, with which they have bytes and direction in common; that one has the probabilities.
  double dispatch_gradient_us(profile::DispatcherStage stage, const MoeLoad& load) const;

  // What of the cluster's measured exchanges those of a group go by, of all copies of a stage; "":
  // none.
  std::string measured(profile::Collective kind, parallel::GroupKind group) const;

  // Where the times of the job's dispatcher come from, and its SMs, as
  // network::dispatch_provenance() has it; "": none, or it has nothing to exchange.
  std::string dispatcher_provenance() const;

  // Whether members of a group of the kind, of all copies of a stage, lie in several domains, so
  // that NICs carry its exchanges.
  bool crosses_domains(parallel::GroupKind group) const;

  // The times of a layer's exchanges but those of rows.
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
  const std::vector<int>& members_of_all_copies(parallel::GroupKind kind) const;
  std::vector<int> instance(parallel::GroupKind kind, const std::vector<int>& all) const;
  std::vector<int> members(parallel::GroupKind kind, Replicas replicas) const;
  bool cross_domains(const std::vector<int>& members) const;
  double gather_us(profile::DispatcherStage stage, bool backward) const;
  double all_to_all_us(profile::DispatcherStage stage, const MoeLoad& load) const;
  bool exchanges_rows() const;
  network::DispatchPlace dispatch_place() const;
  double kernel_us(profile::DispatcherStage stage, const DispatchedLoad& load) const;
  double rectified_us(double rows) const;
  double among(profile::Collective kind, const std::vector<int>& members, double bytes) const;

  const TrainingJob& job_;
  network::ExchangeModel network_;
  profile::MoeTraffic traffic_;
  profile::DispatchGroup dispatch_group_;  // of a job with a dispatcher
  std::array<std::vector<int>, parallel::group_names.size()> members_;
  // For kinds that have replicas of weights: members of one copy of a stage, then of the other.
  std::array<std::vector<int>, parallel::group_names.size()> of_both_copies_;
  std::array<bool, parallel::group_names.size()> crosses_{};  // crosses_domains()
};

}  // namespace moesim::training
