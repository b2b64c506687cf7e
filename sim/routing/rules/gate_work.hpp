#pragma once

#include <cstdint>
#include <vector>

namespace moesim::routing {

struct RouterConfig;

// The work of a gate, which sim/step prices with the curves of a profile. Sizes are for one GPU and
// one MoE layer.
struct GateShape {
  std::int64_t tokens = 0;  // S of this GPU
  std::int64_t hidden = 0;
  int experts = 0;
  std::int64_t slots = 0;  // per sequence, for slots that mix tokens (soft)
  bool backward = false;
  bool train = false;    // part of a training step, forward or backward
  bool fused = false;    // the software computes a gate in few kernels
  bool one_hot = false;  // tokens are dispatched by products with one-hot masks
};

struct GateWork {
  enum class Kind {
    gemm,          // bf16, [rows, depth] by [depth, columns]; backward by input and by weight
    fp32_product,  // the same in true fp32, without tensor cores
    bf16_product,  // the same on tensor cores
    selection,     // `count` kernels that read or write `bytes` each, with `rows` dependent picks
    streaming,     // `bytes` read or written
    serial_scan,   // `rows` dependent steps
    host_read      // the host reads a result, and the GPU waits for what it launches next
  };
  Kind kind = Kind::streaming;
  const char* label = "";  // curve errors are shared by label
  double bytes = 0;
  std::int64_t rows = 0, columns = 0, depth = 0;
  double count = 1;    // calls
  bool gating = true;  // calibrated as part of the gate; false: as other memory-bound kernels
};
using GateWorkList = std::vector<GateWork>;

// Small kernels of a library's gate over [S, E] tensors: softmax, z- and balance loss, and for each
// choice arg-max, one-hot, cumulative sum, masking, ordering, counting. Counted in DeepSpeed's
// top1gating and top2gating (sharded_moe.py); assumed for others.
inline constexpr double gate_kernels = 6;
inline constexpr double gate_kernels_per_choice = 10;

// The kernels of group limits: top-2 of each group and their sum, top groups, scatter, mask, fill.
// Counted in the gate of DeepSeek-V3's published inference code (model.py).
inline constexpr double group_kernels = 6;

// A radix select or sort of 32-bit keys takes four passes of 8 bits. Assumed of torch.topk over the
// columns of [S, E], which sorts what it selects.
inline constexpr double radix_passes = 4;

// The gate of a library with fused kernels: a product in bf16; a kernel that reads the logits and
// chooses, one that gives positions within the capacity, one that weighs, and two for IR. Backward:
// the product by input and by weight, and one kernel over probabilities and their gradients. The
// kernels are those of kernels/routing; serving engines' top-k kernels with moe_align_block_size
// are as many.
namespace fused {
inline constexpr const char* product = "fused gate";
inline constexpr const char* choices = "gate choices";
inline constexpr const char* choices_backward = "gate choices backward";
inline constexpr const char* positions = "gate positions";
inline constexpr const char* weights = "gate weights";
inline constexpr const char* rectification = "gate rectification";
}  // namespace fused
void add_bf16_product(const GateShape& shape, GateWorkList& list);
// What follows the choices.
void add_fused_positions(const RouterConfig& config, const GateShape& shape, GateWorkList& list);
// `pools` of tokens select separately.
GateWorkList fused_gate(const RouterConfig& config, const GateShape& shape, double pools = 1);
// The input in fp32 and its product with the gate in fp32; backward by input and by weight.
void add_gate_product(const GateShape& shape, GateWorkList& list);
// `count` kernels over [S, E], half as many in the backward pass.
void add_gate_kernels(const GateShape& shape, double count, GateWorkList& list);
// For one-hot dispatch: the position of each token in its expert's queue, for each choice.
void add_queue_positions(const GateShape& shape, int choices, GateWorkList& list);
// The gate of a library that takes the best experts of each token: fused, or a product, `kernels`
// small kernels and queue positions.
GateWorkList library_gate(const RouterConfig& config, const GateShape& shape, double kernels,
                          double pools = 1);
// The same with the number of kernels of top-k.
GateWorkList top_k_gate(const RouterConfig& config, const GateShape& shape);
// A gate without scores: no products, no training, only the kernels for the choices.
GateWorkList scoreless_gate(const RouterConfig& config, const GateShape& shape);

}  // namespace moesim::routing
