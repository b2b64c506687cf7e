#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/experts/plan.hpp"
#include "kernels/routing/plan.hpp"
#include "sim/routing/rules/moe_stages.hpp"

// One MoE layer of one rank, forward and backward, as a list of stages over a list of buffers. The
// router's configuration and the stages (sim/routing/rules/moe_stages.hpp) are the simulator's own.
// Host code without CUDA.
//
// S tokens, E experts over P ranks, L = E / P of them local, capacity C, hidden size h, FFN size f;
// bf16 but where it says fp32.
namespace moesim::kernels::layer {

enum class Dispatch { index, einsum };  // rows moved, or multiplied by one-hot masks
using ::moesim::routing::LayerPart;
using ::moesim::routing::name_of;
using ::moesim::routing::Pass;
const char* name_of(Dispatch dispatch);

enum class Buffer {
  // Given: weights as frameworks store them.
  x,             // [S, h]
  gate_weight,   // [E, h]
  up_weight,     // [L, 2 f, h]
  down_weight,   // [L, h, f]
  out_gradient,  // [S, h]
  // Buffers of the forward pass; the backward pass reads most of them.
  router,         // routing::buffer_bytes()
  logits,         // [S, E] fp32
  dispatch_mask,  // [S, E C], einsum
  combine_mask,   // [S, E C], einsum
  rows,           // [E, C, h]: to be sent
  received,       // [L, P C, h]; is `rows` where P = 1
  hidden,         // [L, P C, 2 f]
  activated,      // [L, P C, f]
  expert_out,     // [L, P C, h]
  returned,       // [E, C, h]; is `expert_out` where P = 1
  ir_rows,        // [S, h] at most, with IR, as those below
  ir_hidden,      // [S, 2 f]
  ir_activated,   // [S, f]
  ir_out,         // [S, h]
  mixed,          // [S, h]: einsum's sum before the IR rows are added
  out,            // [S, h]
  // Buffers of the backward pass.
  mask_gradient,        // [S, E C], einsum
  returned_gradient,    // [E, C, h]
  expert_out_gradient,  // [L, P C, h]; is `returned_gradient` where P = 1
  activated_gradient,
  hidden_gradient,
  received_gradient,
  rows_gradient,  // [E, C, h]; is `received_gradient` where P = 1
  ir_out_gradient,
  ir_activated_gradient,
  ir_hidden_gradient,
  ir_rows_gradient,
  mixed_gradient,
  upstream,               // fp32 [k', stride]
  ir_upstream,            // fp32 [S]
  logit_gradient,         // fp32 [S, E]
  narrow_logit_gradient,  // [S, E]
  x_gradient,
  gate_weight_gradient,  // fp32 [E, h]
  up_weight_gradient,
  down_weight_gradient
};
inline constexpr std::size_t buffer_count =
    static_cast<std::size_t>(Buffer::down_weight_gradient) + 1;
const char* name_of(Buffer buffer);

using StageKind = ::moesim::routing::MoeStageKind;

struct Stage {
  StageKind kind = StageKind::gate;
  const char* name = "";  // of its NVTX range too
  LayerPart part = LayerPart::router;
  // What it does at least; IR rows, whose number only the device knows, are not counted.
  double flops = 0;
  double bytes = 0;  // to and from memory; of an exchange the per-rank buffer (nccl-tests' size)
  bool exchange = false;  // all ranks take part
  bool waits = false;     // the host waits for the stream
};

struct LayerProblem {
  routing::RouterProblem router;
  int hidden = 0;
  int ffn = 0;
  Dispatch dispatch = Dispatch::index;
  bool residual = false;  // out = x + ...
  routing::NormaliserRule normaliser = routing::NormaliserRule::straight_through;
  bool grouped = true;  // cublasGemmGroupedBatchedEx may be used, for IR rows

  // Throws UsageError for what the kernels of router and experts refuse, and for no tokens, no
  // capacity, weights other than "kept", IR among several GPUs, IR computed with the experts,
  // capacity over a group, masks whose rows are no whole number of 16-byte pieces.
  void check() const;
  int local_experts() const { return router.experts / router.ranks; }
  // The slots of a rank's row buffers: E C.
  std::int64_t slots() const { return std::int64_t{router.experts} * router.capacity(); }
  bool rectified() const { return router.rectified(); }
};

struct LayerPlan {
  LayerProblem problem;
  experts::FfnPlan ffn;  // of the padded rows
  std::vector<Stage> forward;
  std::vector<Stage> backward;
  std::array<std::size_t, buffer_count> bytes{};  // 0: not needed
  std::array<Buffer, buffer_count> place{};       // itself, or the buffer whose memory it shares

  const std::vector<Stage>& stages(Pass pass) const {
    return pass == Pass::forward ? forward : backward;
  }
  std::size_t bytes_of(Buffer buffer) const { return bytes[static_cast<std::size_t>(buffer)]; }
  // The bytes of the one allocation that carve() divides.
  std::size_t memory_bytes() const;
  // For tests, bytes of an all-to-all's per-rank buffer: E C h elements.
  std::size_t exchange_bytes() const { return bytes_of(Buffer::rows); }
  // The padded rows' products, whoever computes them.
  double flops(Pass pass) const;
};

LayerPlan plan_layer(const LayerProblem& problem);

// Where each buffer of a plan is; null for those it does not need.
struct LayerMemory {
  std::array<void*, buffer_count> at{};
  void* operator[](Buffer buffer) const { return at[static_cast<std::size_t>(buffer)]; }
};
// `memory` is aligned to 256 bytes and holds plan.memory_bytes().
LayerMemory carve(void* memory, const LayerPlan& plan);

}  // namespace moesim::kernels::layer
