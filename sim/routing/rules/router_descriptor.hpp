#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/random.hpp"
#include "sim/routing/rules/exact_counter.hpp"
#include "sim/routing/rules/gate_work.hpp"

namespace moesim::routing {

struct RouterConfig;
struct RouterReading;  // routers/router_reading.hpp
struct KindShape;      // groups/kind_router.hpp
class KindRouter;
class GroupLogits;   // groups/group_logits.hpp
class Chooser;       // groups/chooser.hpp
struct LayerSample;  // rules/layer_sample.hpp

// How many slots per expert and source GPU a kind of router has.
enum class CapacityRule {
  none,              // an expert takes all tokens
  by_factor,         // C by the capacity factor
  by_factor_if_set,  // C if a capacity factor is given, else none
  equal_shares       // S / E, all full; capacity options have no effect
};

// Which rows a kind of router exchanges per (source, expert).
enum class ExchangeBlocks {
  kept,   // with a capacity C rows, or the kept rows with --padding none; else the kept rows
  full,   // one row per slot; all slots are full
  pooled  // the slots of the pools that can go there: unequal, but known before routing
};

// "+HEAD:..." after the name of one kind.
struct RouterSuffix {
  const char* head = nullptr;  // null: the kind has none
  const char* form = "";       // "+groups:GROUPS:KEPT"
  const char* help = "";       // in a line
  const char* elsewhere = "";  // error text if typed after another router
  void (*read)(const RouterReading& in, std::span<const std::string_view> parts,
               RouterConfig& config) = nullptr;
};

// All properties of one kind of router. sim/routing/routers has a file per kind that defines its
// descriptor with its rule and its price, and router_table.hpp lists them. A descriptor is a
// constant; code does not compare descriptors but uses their traits.
//
// Reasons are null where the option is possible; in a message they follow the router's name.
struct RouterDescriptor {
  // The name: the part before the first ':' or '+', or a prefix ("top": top1, topk).
  const char* head = "";
  bool head_is_prefix = false;
  const char* form = "";        // in help texts: "base[:greedy]"
  const char* short_form = "";  // in the middle of a sentence; form where empty
  const char* help = "";        // its rule in one line
  RouterSuffix suffix{};

  // Traits.
  bool moe = true;                // false: one FFN instead of experts, no routing at all
  bool gate = true;               // a gate scores tokens
  bool mixes_tokens = false;      // slots are mixtures of all tokens: no routing
  bool chooses_top_k = false;     // a token goes to the k experts it scores best, maybe among fewer
                                  // than all; dialects of libraries are about these
  bool takes_best = false;        // the k best of all experts and nothing else: routed from a table
                                  // that jobs share, also by recorded choices; `make` is null
  bool keeps_ids = false;         // a token's id decides in all layers, whose losses move together
  bool chooses_together = false;  // what a token gets depends on the other tokens of its GPU
  bool scores_by_sigmoid = false;  // g is a sigmoid of each logit by itself
  bool can_rectify = false;        // FR and IR are possible: routes may fail, and tokens choose
  bool shuffles_tokens = false;    // in training tokens change GPUs at random before and after
  bool skips_exchange = false;     // in training some layers have no all-to-all
  bool gated_output = false;       // y = s E(x) + (1 - s) x, s per row: one more kernel
  bool one_mask = false;           // one-hot masks: a single one, not one per choice
  CapacityRule capacity = CapacityRule::by_factor;
  ExchangeBlocks blocks = ExchangeBlocks::kept;

  // Reasons against options.
  const char* no_counts = nullptr;          // --fidelity counts
  const char* no_group_scope = nullptr;     // --capacity-scope group
  const char* no_one_hot = nullptr;         // --dispatch einsum
  const char* no_unequal_tokens = nullptr;  // GPUs that hold different numbers of tokens
  const char* for_unequal_tokens = "";      // what to choose instead
  const char* idle_padding = nullptr;       // why --padding changes nothing
  const char* idle_weights = nullptr;       // why --weights changes nothing

  // Parses the parameters after the head, and k. Sets `kind` if its form has several kinds.
  void (*read)(const RouterReading& in, RouterConfig& config) = nullptr;
  // The name that parses to this config, without +fr and +ir.
  std::string (*name)(const RouterConfig& config) = nullptr;
  // Converts a router for training to the one for inference; null: the same.
  void (*infer)(RouterConfig& config) = nullptr;
  // Throws UsageError if S = `tokens` of a GPU (0: not known yet) cannot be routed over this number
  // of experts; null: always possible.
  void (*check)(const RouterConfig& config, int experts, std::int64_t tokens) = nullptr;
  // True if no token leaves its GPU; null: never.
  bool (*stays_on_gpu)(const RouterConfig& config) = nullptr;

  // The implementation. Null with takes_best, and for a router without MoE.
  std::unique_ptr<KindRouter> (*make)(const KindShape& shape) = nullptr;
  // With a gate, where tokens choose by a rule of their own: the chooser, which a sample of tokens
  // for --fidelity counts is routed by.
  std::unique_ptr<Chooser> (*make_chooser)(const KindShape& shape) = nullptr;
  // The same where the sample needs more than the rule: groups/layer_sampler.hpp.
  LayerSample (*sample)(const KindShape& shape, const GroupLogits& logits, const StreamKey& stream,
                        std::int64_t tokens) = nullptr;
  // Without a gate, and without make_counter: [expert], P(a token has this expert), in a layer.
  std::vector<double> (*expert_shares)(const RouterConfig& config, int experts,
                                       std::uint32_t layer) = nullptr;
  // Without a gate, if the counts of a GPU follow from its random stream alone: what counts its
  // tokens. Null: counts are drawn by the shares.
  std::unique_ptr<ExactCounter> (*make_counter)(const RouterConfig& config, int experts) = nullptr;

  // The price of the gate, and its assumptions ("": none beyond those of every gate).
  GateWorkList (*price)(const RouterConfig& config, const GateShape& shape) = nullptr;
  const char* assumed = "";

  // True if the router is trained, before it routes, on tokens of the same popularity until loads
  // are even; null: never.
  bool (*trains_biases)(const RouterConfig& config) = nullptr;
};

// The default kind of a RouterConfig (routers/top_k.cpp).
extern const RouterDescriptor top_k_router;

}  // namespace moesim::routing
