#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/base/decimal.hpp"

namespace moesim::routing {

// dense: no MoE layer at all. The others by their rules, in the order of the table below.
enum class RouterKind {
  dense,
  top_k,
  dropless,
  expert_choice,
  base,
  random,
  hash,
  soft,
  scomoe,
  gating_dropout,
  group_limited,
  bias_balanced
};
enum class Rectification { none, gpu, node };  // none, +ir, +ir@node
// Which routes overflow keeps. own_weight: as own_score, by g over the sum of the k choices' g.
enum class Priority { token_max, own_score, own_weight, position, random };
enum class Weights { kept, before_drop, raw };
enum class FillOrder { nominee_score, priority };
enum class IrCompute { separate, grouped, overlap };
enum class IrDuplicates { allow, exclude };
enum class CapacityConvention { paper, library };  // C = ceil(CF S / E), or times k
enum class CapacityScope { source, group };        // per source GPU, or EP group
// Whose rules a router follows (dialect.hpp); by itself it decides how C is rounded.
enum class Dialect { paper, deepspeed, megatron, tutel, switch_transformer };

// What a router does with its tokens. S tokens of a GPU, E experts over the P GPUs of a group, C
// slots per expert and source GPU; g = softmax of a token's logits. Rules:
//   top_k           the k best experts; an overflowing expert keeps C of them (router.hpp)
//   dropless        the k best experts, every route kept (MegaBlocks)
//   expert_choice   each expert takes its C best tokens by g (Zhou et al. 2022)
//   base            training: S/E of each GPU's tokens to each expert, so that the sum of their
//                   logits is largest (Lewis et al. 2021); `greedy`: the best expert, no limit
//   random          one uniform expert a token; `balanced`: a random permutation over the experts
//   hash            one expert a token, a hash of its id; ids are Zipf-distributed (Roller et al.
//                   2021)
//   soft            every slot is a mix of all tokens: nothing is routed (Puigcerver et al. 2023)
//   scomoe          a share of the tokens stays on its GPU, another in its NVLink domain, the rest
//                   goes anywhere; each pool with its C (Zeng and Xiong 2023)
//   gating_dropout  top_k; with probability `dropout` a layer skips the all-to-all and routes among
//                   each GPU's own experts (Liu et al. 2022)
//   group_limited   the k best experts of the `kept_groups` groups of experts whose two best g sum
//                   highest (DeepSeek-V3); dropless unless `drops`
//   bias_balanced   the k best by score + bias, weighed by score, which is a sigmoid; dropless
//                   (Wang et al. 2024). With fewer `kept_groups` than `groups` only among the
//                   experts of those groups whose two best score + bias sum highest: DeepSeek-V3's
//                   router (arXiv:2412.19437, sections 2.1.2 and 5.4; its factor on all weights
//                   routes nothing)
struct RouterConfig {
  RouterKind kind = RouterKind::top_k;
  // k, experts per token before fill-in. expert_choice: the k whose mass the token loss is relative
  // to. 1 for base, random, hash and soft.
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
  bool drops = true;  // false: no capacity, each expert takes all that comes (parse_router sets it)
  Priority priority = Priority::token_max;
  Weights weights = Weights::kept;
  FillOrder fill_order = FillOrder::nominee_score;
  IrCompute ir_compute = IrCompute::separate;
  IrDuplicates ir_duplicates = IrDuplicates::allow;
  Dialect dialect = Dialect::paper;

  // Of one kind each, as in its name.
  bool greedy = false;                    // base: as in inference
  bool balanced = false;                  // random
  Decimal hash_exponent{1};               // hash: of the Zipf distribution of token ids
  Decimal local_share{0}, node_share{0};  // scomoe: ALPHA and BETA, at most 1 together
  Decimal dropout{0};                     // gating_dropout: P, below 1
  int groups = 1, kept_groups = 1;        // group_limited, bias_balanced
  Decimal update_speed{0};                // bias_balanced: u, added or taken per step
  int update_steps = 0;                   // bias_balanced: steps of training behind the bias

  bool is_dense() const { return kind == RouterKind::dense; }
  int choices() const { return top_k + (fill_in ? 1 : 0); }  // k'

  // An expert takes at most C rows of a source GPU, C by the capacity factor: capacity options mean
  // something.
  bool has_capacity() const { return !is_dense() && drops; }
  // All (source, expert) blocks of the exchange have LayerRouting::exchanged_capacity rows, kept or
  // not. Otherwise LayerRouting::kept_rows are the rows that travel.
  bool pads_exchange() const;
  // How many rows each GPU sends to each other is known before routing: no exchange of counts.
  bool counts_known() const { return pads_exchange() || kind == RouterKind::scomoe; }
  // What travels are tokens, each to its own experts; false: mixes of tokens, or nothing.
  bool moves_tokens() const { return !is_dense() && kind != RouterKind::soft; }
  // A gate scores tokens: false for those that need none (random, hash).
  bool has_gate() const;
  // A token goes to the k experts that it scores best, maybe among fewer than all.
  bool chooses_top_k() const {
    return kind == RouterKind::top_k || kind == RouterKind::dropless ||
           kind == RouterKind::gating_dropout || kind == RouterKind::group_limited ||
           kind == RouterKind::bias_balanced;
  }
  // FR and IR mean something: routes may fail, and tokens choose.
  bool can_rectify() const {
    return kind == RouterKind::top_k || kind == RouterKind::gating_dropout;
  }

  // All primary choices of an expert stand in one queue, whatever their order.
  bool has_one_queue() const {
    return priority == Priority::own_score || priority == Priority::own_weight;
  }

  // Slots per expert and source GPU: ceil(CF * tokens / experts) in exact arithmetic (times k
  // under the library convention), or as the dialect's library computes it, at least min_capacity.
  // Tokens of one source GPU, also under `group` scope, where an expert has this many slots times
  // the ranks of the group. base: tokens / experts. 0 for a router without capacity.
  std::int64_t capacity(std::int64_t tokens, std::int64_t experts) const;
  // gating_dropout in a layer that skips the exchange: as it routes there, among the `own_experts`
  // of the GPU, and the slots of each of them.
  RouterConfig among_own(int own_experts) const;
  std::int64_t own_capacity(std::int64_t tokens, int own_experts) const {
    return among_own(own_experts).capacity(tokens, own_experts);
  }
  // "dense", "top2+fr+ir", "gating-dropout:0.3+ir": fill-in before rectification, whatever order
  // was typed. With top_k it says all that parse_router() sets.
  std::string name() const;
};

// A router by its name. After "top1", "top2", ..., "topk" and "gating-dropout:P" any of +fr and +ir
// (or +ir@node) may stand, in any order.
//   dense, topK, topk, dropless, expert-choice, base[:greedy], random[:balanced],
//   hash[:EXPONENT], soft, scomoe:LOCAL:NODE, gating-dropout:P, group-limited:GROUPS:KEPT,
//   bias-balanced[:SPEED[:STEPS]][+groups:GROUPS:KEPT]
// `top_k` is the k typed beside the name (0: none), `usual_k` what stands in for it (0: nothing
// does) where the name has no k of its own; "topk" asks for a typed one. Other fields keep their
// defaults; the capacity factor is k. Throws UsageError with a suggestion for an unknown name,
// suffix or parameter.
RouterConfig parse_router(std::string_view name, int top_k, int usual_k = 0);
// The names above, each with its rule in short, for help texts; the names alone, for messages.
std::vector<std::pair<std::string, std::string>> router_forms();
std::string router_names();

// The spellings of the command line and of the result columns; parse_* throw UsageError that names
// `what` and lists the choices.
std::string name_of(Priority value);
std::string name_of(Weights value);
std::string name_of(FillOrder value);
std::string name_of(IrCompute value);
std::string name_of(IrDuplicates value);
std::string name_of(CapacityConvention value);
std::string name_of(CapacityScope value);
std::string name_of(Dialect value);
Priority parse_priority(std::string_view text, const std::string& what);
Weights parse_weights(std::string_view text, const std::string& what);
FillOrder parse_fill_order(std::string_view text, const std::string& what);
IrCompute parse_ir_compute(std::string_view text, const std::string& what);
IrDuplicates parse_ir_duplicates(std::string_view text, const std::string& what);
CapacityConvention parse_capacity_convention(std::string_view text, const std::string& what);
CapacityScope parse_capacity_scope(std::string_view text, const std::string& what);
Dialect parse_dialect(std::string_view text, const std::string& what);
// RouterConfig::pad_to_capacity: "capacity" or "none".
std::string name_of_padding(bool to_capacity);
bool parse_padding(std::string_view text, const std::string& what);

}  // namespace moesim::routing
