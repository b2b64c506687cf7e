#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "sim/base/decimal.hpp"
#include "sim/routing/rules/router_descriptor.hpp"
#include "sim/routing/rules/router_options.hpp"

namespace moesim::routing {

// What the name of a router says about its kind alone, in the order in which the name says it; the
// file of the kind (sim/routing/routers) says what each number means.
using RouterParameters = std::array<Decimal, 4>;

// A router: its kind, what the name adds to it, and the options on capacity and overflow. S tokens
// of a GPU, E experts over the P GPUs of a group, C slots per expert and source GPU; g = softmax of
// a token's logits.
struct RouterConfig {
  const RouterDescriptor* kind = &top_k_router;  // never null
  RouterParameters parameters{};
  // Experts lie in so many groups of neighbours, and a token goes to those of the kept ones alone.
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
  // Blocks of C rows travel whatever is in them; false for software that drops but sends no
  // padding.
  bool pad_to_capacity = true;
  bool drops = true;  // false: no capacity, each expert takes all that comes (by CapacityRule)
  Priority priority = Priority::token_max;
  Weights weights = Weights::kept;
  FillOrder fill_order = FillOrder::nominee_score;
  IrCompute ir_compute = IrCompute::separate;
  IrDuplicates ir_duplicates = IrDuplicates::allow;
  Dialect dialect = Dialect::paper;

  bool is_dense() const { return !kind->moe; }
  int choices() const { return top_k + (fill_in ? 1 : 0); }  // k'

  // An expert takes at most C rows of a source GPU, C by the capacity factor: capacity options mean
  // something.
  bool has_capacity() const { return !is_dense() && drops; }
  // All (source, expert) blocks of the exchange have LayerRouting::exchanged_capacity rows, kept or
  // not. Otherwise LayerRouting::kept_rows are the rows that travel.
  bool pads_exchange() const;
  // How many rows each GPU sends to each other is known before routing: no exchange of counts.
  bool counts_known() const { return pads_exchange() || kind->blocks == ExchangeBlocks::pooled; }
  // Routes fail where more of them ask for an expert than it has slots.
  bool overflows() const { return has_capacity() && kind->blocks != ExchangeBlocks::full; }
  // What travels are tokens, each to its own experts; false: mixes of tokens, or nothing.
  bool moves_tokens() const { return !is_dense() && !kind->mixes_tokens; }
  bool mixes_tokens() const { return kind->mixes_tokens; }
  // No token leaves its GPU.
  bool stays_on_gpu() const { return kind->stays_on_gpu != nullptr && kind->stays_on_gpu(*this); }
  // A gate scores tokens: false for those that need none.
  bool has_gate() const { return kind->gate; }
  // The scores are of experts, and which expert is which matters.
  bool scores_experts() const { return has_gate() && moves_tokens(); }
  bool chooses_top_k() const { return kind->chooses_top_k; }
  bool takes_best() const { return kind->takes_best; }
  bool can_rectify() const { return kind->can_rectify; }

  // All primary choices of an expert stand in one queue, whatever their order.
  bool has_one_queue() const {
    return priority == Priority::own_score || priority == Priority::own_weight;
  }

  // Slots per expert and source GPU: ceil(CF * tokens / experts) in exact arithmetic (times k
  // under the library convention), or as the dialect's library computes it, at least min_capacity.
  // Tokens of one source GPU, also under `group` scope, where an expert has this many slots times
  // the ranks of the group. Under CapacityRule::equal_shares tokens / experts; 0 for a router
  // without capacity.
  std::int64_t capacity(std::int64_t tokens, std::int64_t experts) const;
  // In a layer that skips the exchange: as it routes there, among the `own_experts` of the GPU, and
  // the slots of each of them.
  RouterConfig among_own(int own_experts) const;
  std::int64_t own_capacity(std::int64_t tokens, int own_experts) const {
    return among_own(own_experts).capacity(tokens, own_experts);
  }
  // "dense", "top2+fr+ir", "gating-dropout:0.3+ir": fill-in before rectification, whatever order
  // was typed. With top_k it says all that parse_router() (routers/router_name.hpp) sets.
  std::string name() const;
};

}  // namespace moesim::routing
