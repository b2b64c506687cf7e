#pragma once

#include <string>
#include <string_view>

#include "sim/base/enum_names.hpp"

namespace moesim::routing {

// The options of routers that do not depend on their kind, and their names on the command line and
// in result columns.

enum class Rectification { none, gpu, node };  // none, +ir, +ir@node
// Which routes are kept on overflow. own_weight: as own_score, by g over the sum of the k choices'
// g. token_order: as position, but all choices of a token together.
enum class Priority { token_max, own_score, own_weight, position, token_order, random };
enum class Weights { kept, before_drop, raw };
enum class FillOrder { nominee_score, priority };
enum class IrCompute { separate, grouped, overlap };
enum class IrDuplicates { allow, exclude };
enum class CapacityConvention { paper, library };  // C = ceil(CF S / E), or times k
enum class CapacityScope { source, group };        // per source GPU, or EP group
// Rows of a (source, expert) block: C; the most that any expert of the group has from one source,
// so that nothing is dropped; or what is there.
enum class Padding { capacity, busiest, none };
// What a group of experts is worth to a token: its best selection score; the sum of its two best;
// of its k / kept groups best; the same sum over logits (Megatron-Core with the softmax after the
// choice).
enum class GroupScore { max, top2, topk, topk_logits };
// g: over all experts of a token, or of each logit by itself.
enum class ScoreFunction { softmax, sigmoid };
// How top-2 chooses its second expert: the second best, or the largest of logit + Gumbel noise
// (DeepSpeed).
enum class SecondExpert { best, sampled };
// What the router's product writes its logits in; scores are fp32 either way.
enum class RouterDtype { fp32, bf16 };
// The library whose rules a router follows (dialect.hpp); by itself it determines the rounding of
// C.
enum class Dialect { paper, deepspeed, megatron, tutel, switch_transformer, megablocks };

// In the order of help texts and messages.
inline constexpr EnumNames<Priority, 6> priority_names{{{Priority::token_max, "token-max"},
                                                        {Priority::own_score, "own-score"},
                                                        {Priority::own_weight, "own-weight"},
                                                        {Priority::position, "position"},
                                                        {Priority::token_order, "token-order"},
                                                        {Priority::random, "random"}}};
inline constexpr EnumNames<Weights, 3> weights_names{
    {{Weights::kept, "kept"}, {Weights::before_drop, "before-drop"}, {Weights::raw, "raw"}}};
inline constexpr EnumNames<FillOrder, 2> fill_order_names{
    {{FillOrder::nominee_score, "nominee-score"}, {FillOrder::priority, "priority"}}};
inline constexpr EnumNames<IrCompute, 3> ir_compute_names{{{IrCompute::separate, "separate"},
                                                           {IrCompute::grouped, "grouped"},
                                                           {IrCompute::overlap, "overlap"}}};
inline constexpr EnumNames<IrDuplicates, 2> ir_duplicates_names{
    {{IrDuplicates::allow, "allow"}, {IrDuplicates::exclude, "exclude"}}};
inline constexpr EnumNames<CapacityConvention, 2> capacity_convention_names{
    {{CapacityConvention::paper, "paper"}, {CapacityConvention::library, "library"}}};
inline constexpr EnumNames<CapacityScope, 2> capacity_scope_names{
    {{CapacityScope::source, "source"}, {CapacityScope::group, "group"}}};
inline constexpr EnumNames<Dialect, 6> dialect_names{{{Dialect::paper, "paper"},
                                                      {Dialect::deepspeed, "deepspeed"},
                                                      {Dialect::megatron, "megatron"},
                                                      {Dialect::tutel, "tutel"},
                                                      {Dialect::switch_transformer, "switch"},
                                                      {Dialect::megablocks, "megablocks"}}};
inline constexpr EnumNames<Padding, 3> padding_names{
    {{Padding::capacity, "capacity"}, {Padding::busiest, "busiest"}, {Padding::none, "none"}}};
inline constexpr EnumNames<ScoreFunction, 2> score_function_names{
    {{ScoreFunction::softmax, "softmax"}, {ScoreFunction::sigmoid, "sigmoid"}}};
inline constexpr EnumNames<SecondExpert, 2> second_expert_names{
    {{SecondExpert::best, "best"}, {SecondExpert::sampled, "sampled"}}};
inline constexpr EnumNames<RouterDtype, 2> router_dtype_names{
    {{RouterDtype::fp32, "fp32"}, {RouterDtype::bf16, "bf16"}}};
inline constexpr EnumNames<GroupScore, 4> group_score_names{
    {{GroupScore::max, "max"},
     {GroupScore::top2, "top2"},
     {GroupScore::topk, "topk"},
     {GroupScore::topk_logits, "topk-logits"}}};

std::string name_of(Priority value);
std::string name_of(Weights value);
std::string name_of(FillOrder value);
std::string name_of(IrCompute value);
std::string name_of(IrDuplicates value);
std::string name_of(CapacityConvention value);
std::string name_of(CapacityScope value);
std::string name_of(Dialect value);
std::string name_of(Padding value);
std::string name_of(GroupScore value);
std::string name_of(ScoreFunction value);
std::string name_of(SecondExpert value);
std::string name_of(RouterDtype value);
// Throw a UsageError that names `where` and lists the choices.
Priority parse_priority(std::string_view text, const std::string& where);
Weights parse_weights(std::string_view text, const std::string& where);
FillOrder parse_fill_order(std::string_view text, const std::string& where);
IrCompute parse_ir_compute(std::string_view text, const std::string& where);
IrDuplicates parse_ir_duplicates(std::string_view text, const std::string& where);
CapacityConvention parse_capacity_convention(std::string_view text, const std::string& where);
CapacityScope parse_capacity_scope(std::string_view text, const std::string& where);
Dialect parse_dialect(std::string_view text, const std::string& where);
Padding parse_padding(std::string_view text, const std::string& where);
GroupScore parse_group_score(std::string_view text, const std::string& where);
ScoreFunction parse_score_function(std::string_view text, const std::string& where);
SecondExpert parse_second_expert(std::string_view text, const std::string& where);
RouterDtype parse_router_dtype(std::string_view text, const std::string& where);

}  // namespace moesim::routing
