#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sim/base/decimal.hpp"

namespace moesim::routing {

enum class RouterKind { dense, top_k };                          // dense: no MoE layer at all
enum class Rectification { none, gpu, node };                    // none, +ir, +ir@node
enum class Priority { token_max, own_score, position, random };  // which routes overflow keeps
enum class Weights { kept, before_drop, raw };
enum class FillOrder { nominee_score, priority };
enum class IrCompute { separate, grouped, overlap };
enum class IrDuplicates { allow, exclude };
enum class CapacityConvention { paper, library };  // C = ceil(CF S / E), or times k
enum class CapacityScope { source, group };        // per source GPU, or EP group

// What a router does with its tokens; the rules are those of Zeng et al. 2024 and of the
// libraries named beside each enumerator's rule in router.hpp.
struct RouterConfig {
  RouterKind kind = RouterKind::top_k;
  int top_k = 2;                                      // k, experts per token before fill-in
  bool fill_in = false;                               // Fill-in Rectification (FR)
  Rectification rectification = Rectification::none;  // Intra-GPU Rectification (IR)
  Decimal capacity_factor{2};
  CapacityConvention capacity_convention = CapacityConvention::paper;
  CapacityScope capacity_scope = CapacityScope::source;
  std::int64_t min_capacity = 0;
  Priority priority = Priority::token_max;
  Weights weights = Weights::kept;
  FillOrder fill_order = FillOrder::nominee_score;
  IrCompute ir_compute = IrCompute::separate;
  IrDuplicates ir_duplicates = IrDuplicates::allow;

  bool is_dense() const { return kind == RouterKind::dense; }
  int choices() const { return top_k + (fill_in ? 1 : 0); }  // k'
  // Slots per expert and source GPU: ceil(CF * tokens / experts) in exact arithmetic (times k
  // under the library convention), at least min_capacity. Tokens of one source GPU, also under
  // `group` scope, where an expert has this many slots times the ranks of the group.
  std::int64_t capacity(std::int64_t tokens, std::int64_t experts) const;
  // "dense", "top2+fr+ir": fill-in before rectification, whatever order was typed.
  std::string name() const;
};

// The router part of a name: "top1", "top2+ir+fr", "topk", "dense", "top2+ir@node". `top_k` is
// the k of "topk" (0: not given). Other fields keep their defaults; the capacity factor is k.
// Throws UsageError with a suggestion for an unknown name or suffix.
RouterConfig parse_router(std::string_view name, int top_k);

// The spellings of the command line and of the result columns; parse_* throw UsageError that names
// `what` and lists the choices.
std::string name_of(Priority value);
std::string name_of(Weights value);
std::string name_of(FillOrder value);
std::string name_of(IrCompute value);
std::string name_of(IrDuplicates value);
std::string name_of(CapacityConvention value);
std::string name_of(CapacityScope value);
Priority parse_priority(std::string_view text, const std::string& what);
Weights parse_weights(std::string_view text, const std::string& what);
FillOrder parse_fill_order(std::string_view text, const std::string& what);
IrCompute parse_ir_compute(std::string_view text, const std::string& what);
IrDuplicates parse_ir_duplicates(std::string_view text, const std::string& what);
CapacityConvention parse_capacity_convention(std::string_view text, const std::string& what);
CapacityScope parse_capacity_scope(std::string_view text, const std::string& what);

}  // namespace moesim::routing
