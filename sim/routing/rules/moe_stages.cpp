#include "sim/routing/rules/moe_stages.hpp"

namespace moesim::routing {
namespace {

enum class Needs { nothing, index, einsum, ir, einsum_and_ir };

struct StageRule {
  Pass pass;
  MoeStage stage;
  Needs needs = Needs::nothing;
};

constexpr Pass forward = Pass::forward;
constexpr Pass backward = Pass::backward;

using Kind = MoeStageKind;
using Phase = MoePhase;

// Grouped by phase, each in order.
constexpr StageRule rules[] = {
    {forward, {Kind::gate, Phase::route, "gate", LayerPart::router}},
    {forward, {Kind::assign, Phase::route, "capacity", LayerPart::router}},
    {forward, {Kind::weigh, Phase::route, "weights", LayerPart::router}},
    {forward, {Kind::collect, Phase::route, "IR rows", LayerPart::rectify}, Needs::ir},
    {forward,
     {Kind::permute, Phase::dispatch, "permute", LayerPart::dispatch_combine},
     Needs::index},
    {forward,
     {Kind::dispatch_mask, Phase::dispatch, "dispatch mask", LayerPart::dispatch_combine},
     Needs::einsum},
    {forward,
     {Kind::dispatch_product, Phase::dispatch, "dispatch product", LayerPart::dispatch_combine},
     Needs::einsum},
    {forward,
     {Kind::gather_ir, Phase::dispatch, "IR gather", LayerPart::rectify},
     Needs::einsum_and_ir},
    {forward, {Kind::send, Phase::dispatch_exchange, "dispatch all-to-all", LayerPart::exchange}},
    {forward, {Kind::experts, Phase::experts, "experts", LayerPart::expert}},
    {forward,
     {Kind::send_back, Phase::combine_exchange, "combine all-to-all", LayerPart::exchange}},
    {forward, {Kind::ir_counts, Phase::rectify, "IR counts", LayerPart::rectify}},
    {forward, {Kind::ir_experts, Phase::rectify, "IR experts", LayerPart::rectify}},
    {forward,
     {Kind::combine, Phase::combine, "combine", LayerPart::dispatch_combine},
     Needs::index},
    {forward,
     {Kind::combine_mask, Phase::combine, "combine mask", LayerPart::dispatch_combine},
     Needs::einsum},
    {forward,
     {Kind::combine_product, Phase::combine, "combine product", LayerPart::dispatch_combine},
     Needs::einsum},
    {forward, {Kind::blend, Phase::combine, "IR blend", LayerPart::rectify}, Needs::einsum_and_ir},

    {backward,
     {Kind::combine_backward, Phase::combine, "combine backward", LayerPart::dispatch_combine},
     Needs::index},
    {backward,
     {Kind::mask_by_weight, Phase::combine, "combine product by weight",
      LayerPart::dispatch_combine},
     Needs::einsum},
    {backward,
     {Kind::mask_by_input, Phase::combine, "combine product by input", LayerPart::dispatch_combine},
     Needs::einsum},
    {backward,
     {Kind::read_mask, Phase::combine, "mask gradient", LayerPart::dispatch_combine},
     Needs::einsum},
    {backward,
     {Kind::blend_backward, Phase::combine, "IR blend backward", LayerPart::rectify},
     Needs::einsum_and_ir},
    {backward,
     {Kind::send_back_gradient, Phase::combine_exchange, "combine all-to-all backward",
      LayerPart::exchange}},
    {backward, {Kind::experts_backward, Phase::experts, "experts backward", LayerPart::expert}},
    {backward,
     {Kind::send_gradient, Phase::dispatch_exchange, "dispatch all-to-all backward",
      LayerPart::exchange}},
    {backward,
     {Kind::ir_experts_backward, Phase::rectify, "IR experts backward", LayerPart::rectify}},
    {backward,
     {Kind::permute_backward, Phase::dispatch, "permute backward", LayerPart::dispatch_combine},
     Needs::index},
    {backward,
     {Kind::dispatch_by_input, Phase::dispatch, "dispatch product by input",
      LayerPart::dispatch_combine},
     Needs::einsum},
    {backward,
     {Kind::blend_gradient, Phase::dispatch, "IR gather backward", LayerPart::rectify},
     Needs::einsum_and_ir},
    {backward, {Kind::router_backward, Phase::route, "router backward", LayerPart::router}},
    {backward, {Kind::narrow, Phase::route, "logit gradient in bf16", LayerPart::router}},
    {backward, {Kind::gate_by_weight, Phase::route, "gate by weight", LayerPart::router}},
    {backward, {Kind::gate_by_input, Phase::route, "gate by input", LayerPart::router}},
};

bool has(Needs needs, const MoeLayerShape& shape, RowMoves moves) {
  const bool einsum = moves == RowMoves::einsum;
  switch (needs) {
    case Needs::nothing:
      return true;
    case Needs::index:
      return !einsum;
    case Needs::einsum:
      return einsum;
    case Needs::ir:
      return shape.rectified;
    case Needs::einsum_and_ir:
      break;
  }
  return einsum && shape.rectified;
}

}  // namespace

std::vector<MoeStage> moe_stages(Pass pass, const MoeLayerShape& shape, RowMoves moves) {
  std::vector<MoeStage> stages;
  for (const MoePhase phase : moe_phases(pass, shape)) {
    for (const StageRule& rule : rules) {
      if (rule.pass == pass && rule.stage.phase == phase && has(rule.needs, shape, moves)) {
        stages.push_back(rule.stage);
      }
    }
  }
  return stages;
}

namespace {

// Bytes of one entry of the arrays of routes, [choice, token], and of tokens
// (kernels/routing/arguments.hpp).
constexpr double expert_id = 2;
constexpr double probability = 4;
constexpr double slot = 4;
constexpr double weight = 4;
constexpr double upstream = 4;       // gradient of the weight
constexpr double mask_gradient = 2;  // an element of a one-hot mask's, in bf16
constexpr double ir_row = 4;         // of a token
constexpr double row_token = 4;      // of an IR row

}  // namespace

MoeStageWork work_of(MoeStageKind stage, const MoeLayerSizes& sizes) {
  const auto count = [](std::int64_t number) { return static_cast<double>(number); };
  const std::int64_t slots = sizes.experts * sizes.capacity;
  const double token_bytes = 2 * count(sizes.tokens * sizes.hidden);
  const double row_bytes = 2 * count(slots * sizes.hidden);
  const double mask_bytes = 2 * count(sizes.tokens) * count(slots);
  const double logit_bytes = 4 * count(sizes.tokens * sizes.experts);  // fp32
  const double gate_cells = count(sizes.experts * sizes.hidden);
  const double routes = count(sizes.tokens) * count(sizes.choices);
  const double residual = sizes.residual ? token_bytes : 0;
  const double moved = token_bytes + row_bytes;
  const double product = 2 * count(sizes.tokens) * count(slots) * count(sizes.hidden);
  const double gate_product = 2 * count(sizes.tokens) * count(sizes.experts) * count(sizes.hidden);
  switch (stage) {
    case Kind::gate:
      return {gate_product, token_bytes + logit_bytes + (expert_id + probability + slot) * routes,
              2 * gate_cells};
    case Kind::assign:
      return {0, (expert_id + probability + slot) * routes};
    case Kind::weigh: {
      // With IR each token's best local expert with its probability, and which row it becomes.
      const double local_expert = expert_id + probability;
      const double rectified = expert_id + weight + probability;
      return {0, (expert_id + probability + slot + weight) * routes +
                     (sizes.rectified ? (local_expert + rectified) * count(sizes.tokens) : 0)};
    }
    case Kind::collect:
      return {0, (expert_id + ir_row + row_token) * count(sizes.tokens)};
    case Kind::permute:
      return {0, moved};
    case Kind::dispatch_mask:
    case Kind::combine_mask:
      return {0, mask_bytes};
    case Kind::dispatch_product:
      return {product, mask_bytes + moved};
    case Kind::combine:
    case Kind::permute_backward:
      return {0, moved + residual};
    case Kind::combine_product:
    case Kind::dispatch_by_input:
      // The input is copied to the result, to which the product adds: read, written, read.
      return {product, mask_bytes + moved + 3 * residual};
    case Kind::combine_backward:
      return {0, moved + row_bytes};
    case Kind::mask_by_weight:
    case Kind::mask_by_input:
      return {product, mask_bytes + moved};
    case Kind::read_mask:
      return {0, (expert_id + slot + mask_gradient + upstream) * routes};
    case Kind::blend:
    case Kind::blend_gradient:
      return {0, 2 * token_bytes};
    case Kind::send:
    case Kind::send_back:
    case Kind::send_back_gradient:
    case Kind::send_gradient:
      return {0, row_bytes};
    case Kind::router_backward:
      return {0, 2 * logit_bytes + (expert_id + slot + weight + upstream) * routes};
    case Kind::narrow:  // read in fp32, written in bf16
      return {0, logit_bytes + logit_bytes / 2};
    // Their other operand, E columns wide, is in bf16; the weights' gradient is in fp32.
    case Kind::gate_by_weight:
      return {gate_product, token_bytes + logit_bytes / 2, 4 * gate_cells};
    case Kind::gate_by_input:
      return {gate_product, 2 * token_bytes + logit_bytes / 2, 2 * gate_cells};
    case Kind::gather_ir:
    case Kind::experts:
    case Kind::ir_counts:
    case Kind::ir_experts:
    case Kind::blend_backward:
    case Kind::experts_backward:
    case Kind::ir_experts_backward:
      break;
  }
  return {};
}

}  // namespace moesim::routing
