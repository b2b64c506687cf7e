#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "sim/base/decimal.hpp"
#include "sim/routing/rules/router_descriptor.hpp"
#include "sim/routing/rules/router_options.hpp"

namespace moesim::routing {

class ExpertBias;  // rules/expert_bias.hpp

// The parameters of a kind in the name of a router, in the order of the name; the file of the kind
// (sim/routing/routers) defines their meaning.
using RouterParameters = std::array<Decimal, 4>;

// A router: its kind, what the name adds to it, and the options on capacity and overflow. S tokens
// of a GPU, E experts over the P GPUs of a group, C slots per expert and source GPU; g = softmax of
// a token's logits.
struct RouterConfig {
  const RouterDescriptor* kind = &top_k_router;  // never null
  RouterParameters parameters{};
  // Experts form this number of groups of neighbours, and a token only goes to experts of its kept
  // groups.
  int groups = 1, kept_groups = 1;
  // k, experts per token before fill-in; 1 where a token has one expert. Where experts choose
  // tokens, the k whose mass the token loss is relative to.
  int top_k = 2;
  bool fill_in = false;                               // Fill-in Rectification (FR)
  Rectification rectification = Rectification::none;  // Intra-GPU Rectification (IR)
  Decimal capacity_factor{2};
  CapacityConvention capacity_convention = CapacityConvention::paper;
  CapacityScope capacity_scope = CapacityScope::source;
  std::int64_t min_capacity = 0;
  std::int64_t capacity_alignment = 1;  // C is rounded up to a multiple of it (Tutel)
  Padding padding = Padding::capacity;
  // false: no capacity, each expert takes all tokens (by CapacityRule, or with Padding::busiest)
  bool drops = true;
  GroupScore group_score = GroupScore::max;
  ScoreFunction score_function = ScoreFunction::softmax;  // of kinds that take the k best
  SecondExpert second_expert = SecondExpert::best;        // the same
  RouterDtype router_dtype = RouterDtype::fp32;
  std::shared_ptr<const ExpertBias> expert_bias;  // null: none, or the bias is trained
  Priority priority = Priority::token_max;
  Weights weights = Weights::kept;
  Decimal weight_scale{1};  // of all weights of a token (routed_scaling_factor)
  FillOrder fill_order = FillOrder::nominee_score;
  IrCompute ir_compute = IrCompute::separate;
  IrDuplicates ir_duplicates = IrDuplicates::allow;
  Dialect dialect = Dialect::paper;
  std::string trained_name;  // name() before RouterDescriptor::infer(); empty: the same

  bool is_dense() const { return !kind->moe; }
  int choices() const { return top_k + (fill_in ? 1 : 0); }  // k'

  // An expert takes at most C rows from a source GPU, with C from the capacity factor: capacity
  // options have an effect.
  bool has_capacity() const { return !is_dense() && drops; }
  // All (source, expert) blocks of a group's exchange have LayerRouting::block_of() rows, kept or
  // not. Otherwise LayerRouting::kept_rows are the rows that are sent.
  bool pads_exchange() const;
  // The rows that GPUs send to each other are known before routing: no exchange of counts.
  bool counts_known() const { return pads_exchange() || kind->blocks == ExchangeBlocks::pooled; }
  // Nothing is dropped, and blocks are as long as the longest (Padding::busiest).
  bool pads_to_busiest() const { return !is_dense() && padding == Padding::busiest; }
  std::int64_t aligned(std::int64_t slots) const {
    return (slots + capacity_alignment - 1) / capacity_alignment * capacity_alignment;
  }
  // Routes fail if an expert has fewer slots than routes.
  bool overflows() const { return has_capacity() && kind->blocks != ExchangeBlocks::full; }
  // The exchange sends tokens, each to its own experts; false: mixtures of tokens, or nothing.
  bool moves_tokens() const { return !is_dense() && !kind->mixes_tokens; }
  bool mixes_tokens() const { return kind->mixes_tokens; }
  // No token leaves its GPU.
  bool stays_on_gpu() const { return kind->stays_on_gpu != nullptr && kind->stays_on_gpu(*this); }
  // Loads are evened by a training on the popularity that is routed: an uneven one costs nothing.
  bool trains_biases() const {
    return kind->trains_biases != nullptr && kind->trains_biases(*this);
  }
  // A gate scores tokens: false for those that need none.
  bool has_gate() const { return kind->gate; }
  // There are scores per expert, and experts are not interchangeable.
  bool scores_experts() const { return has_gate() && moves_tokens(); }
  bool chooses_top_k() const { return kind->chooses_top_k; }
  // The choice differs from the k best by softmax of fp32 logits: see variant_router.hpp.
  bool varies() const {
    return score_function != ScoreFunction::softmax || second_expert != SecondExpert::best ||
           router_dtype != RouterDtype::fp32 || expert_bias != nullptr;
  }
  bool takes_best() const { return kind->takes_best && !varies(); }
  bool can_rectify() const { return kind->can_rectify; }

  // All primary choices of an expert are in one queue, regardless of their rank among the choices.
  bool has_one_queue() const { return sorts_own_queue() || priority == Priority::token_order; }
  // And that queue is in the order of their scores.
  bool sorts_own_queue() const {
    return priority == Priority::own_score || priority == Priority::own_weight;
  }

  // Slots per expert and source GPU: ceil(CF * tokens / experts) in exact arithmetic (times k under
  // the library convention), or as the dialect's library computes it, at least min_capacity. For
  // the tokens of one source GPU, also with `group` scope, where an expert has this number of slots
  // times the ranks of the group. With CapacityRule::equal_shares: tokens / experts; 0 for a router
  // without capacity.
  std::int64_t capacity(std::int64_t tokens, std::int64_t experts) const;
  // For a layer that skips the exchange: the router among the `own_experts` of the GPU, and the
  // slots of each of them.
  RouterConfig among_own(int own_experts) const;
  std::int64_t own_capacity(std::int64_t tokens, int own_experts) const {
    return among_own(own_experts).capacity(tokens, own_experts);
  }
  // "dense", "top2+fr+ir", "gating-dropout:0.3+ir": fill-in before rectification, in whatever order
  // they were typed. Together with top_k it contains everything that parse_router()
  // (routers/router_name.hpp) sets.
  std::string name() const;
  // The router that was asked for, which refusals name.
  std::string asked_name() const { return trained_name.empty() ? name() : trained_name; }
};

}  // namespace moesim::routing
