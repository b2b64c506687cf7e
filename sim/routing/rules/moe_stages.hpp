#pragma once

#include <cstdint>
#include <vector>

#include "sim/routing/rules/moe_phases.hpp"

// The stages of an MoE layer with equal blocks on one GPU, as kernels/layer runs them and sim/step
// prices them: each a kernel, a few products, or an exchange.
namespace moesim::routing {

enum class MoeStageKind {
  // Forward.
  gate,
  assign,
  weigh,
  collect,
  permute,
  dispatch_mask,
  dispatch_product,
  gather_ir,
  send,
  experts,
  send_back,
  ir_counts,
  ir_experts,
  combine,
  combine_mask,
  combine_product,
  blend,
  // Backward.
  combine_backward,
  mask_by_weight,
  mask_by_input,
  read_mask,
  blend_backward,
  send_back_gradient,
  experts_backward,
  send_gradient,
  ir_experts_backward,
  permute_backward,
  dispatch_by_input,
  blend_gradient,
  router_backward,
  narrow,
  gate_by_weight,
  gate_by_input
};

struct MoeStage {
  MoeStageKind kind = MoeStageKind::gate;
  MoePhase phase = MoePhase::route;
  const char* name = "";
  LayerPart part = LayerPart::router;
};

// How rows are put into the blocks of their experts: copied, or multiplied by one-hot masks.
enum class RowMoves { index, einsum };

// The stages of a pass in their order: those of each of its moe_phases(). IR rows are gathered with
// the dispatch and blended with the combination.
std::vector<MoeStage> moe_stages(Pass pass, const MoeLayerShape& shape, RowMoves moves);

// Tokens S of the GPU, E experts, P ranks, C slots per source and expert, k' choices of a token,
// hidden size h; elements are bf16 except where work_of() says fp32.
struct MoeLayerSizes {
  std::int64_t tokens = 0;
  std::int64_t experts = 0;
  std::int64_t capacity = 0;
  std::int64_t hidden = 0;
  std::int64_t choices = 0;
  bool rectified = false;
  bool residual = false;  // the layer adds its input to its output
};

// The minimum work of a stage. IR rows, whose number is known only on the device, and the products
// of the experts are not counted.
struct MoeStageWork {
  double flops = 0;
  double bytes = 0;         // to and from memory; for an exchange: the per-rank buffer
  double weight_bytes = 0;  // additional bytes of the gate's weights or their gradient
};
MoeStageWork work_of(MoeStageKind stage, const MoeLayerSizes& sizes);

}  // namespace moesim::routing
