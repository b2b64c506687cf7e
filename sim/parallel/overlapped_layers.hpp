#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "sim/base/enum_names.hpp"
#include "sim/base/units.hpp"

namespace moesim::parallel {

// The pieces of one layer on one rank. A dense layer has no experts and no exchanges of them.
struct LayerPieces {
  Picoseconds attention_forward;  // with the router, shared experts, the FFN of a dense layer
  Picoseconds attention_backward;
  Picoseconds attention_weight_gradient;
  Picoseconds experts_forward;
  Picoseconds experts_backward;
  Picoseconds experts_weight_gradient;
  Picoseconds dispatch_forward;
  Picoseconds combine_forward;
  Picoseconds combine_backward;
  Picoseconds dispatch_backward;
};

// What a piece is; the forward ones are of the forward chunk.
enum class LayerPiece {
  combine_backward,
  attention_forward,
  experts_backward,
  experts_weight_gradient,
  dispatch_forward,
  dispatch_backward,
  experts_forward,
  combine_forward,
  attention_backward,
  attention_weight_gradient,
};
inline constexpr EnumNames<LayerPiece, 10> layer_piece_names{{
    {LayerPiece::combine_backward, "combine backward"},
    {LayerPiece::attention_forward, "attention forward"},
    {LayerPiece::experts_backward, "experts backward"},
    {LayerPiece::experts_weight_gradient, "experts weight gradient"},
    {LayerPiece::dispatch_forward, "dispatch forward"},
    {LayerPiece::dispatch_backward, "dispatch backward"},
    {LayerPiece::experts_forward, "experts forward"},
    {LayerPiece::combine_forward, "combine forward"},
    {LayerPiece::attention_backward, "attention backward"},
    {LayerPiece::attention_weight_gradient, "attention weight gradient"},
}};
bool is_exchange(LayerPiece piece);
bool is_forward(LayerPiece piece);

// When a piece of the `layer`-th pair of layers ran; empty pieces did not.
struct PieceSpan {
  LayerPiece piece = LayerPiece::attention_forward;
  std::size_t layer = 0;
  Picoseconds start;
  Picoseconds end;
};

struct OverlapRules {
  // While the exchange stream works on `exchange_sms` of `sms`, the compute stream has the rest:
  // its kernels take sms / (sms - exchange_sms) times as long. 0: copy engines or NICs alone.
  int sms = 1;
  int exchange_sms = 0;
};

// How long a forward chunk beside a backward chunk takes: t_FB of 1F1B with overlapped exchanges of
// experts (megatron/core/models/common/model_chunk_schedule_plan.py). `forward` holds the layers of
// one chunk in their order, `backward` those of the other in the order of the backward pass, the
// last layer first; layer i of one runs beside layer i of the other, what is left over alone. Two
// streams, each in its order:
//   exchange: combine_bwd | dispatch_fwd, dispatch_bwd           | combine_fwd
//   compute:  attention   | experts_bwd, experts_W, experts_fwd  | attention_bwd, attention_W
// Event simulation in whole picoseconds. Throws UsageError unless 0 <= exchange_sms < sms.
Picoseconds overlapped_time(std::span<const LayerPieces> forward,
                            std::span<const LayerPieces> backward, const OverlapRules& rules);
// The same, piece by piece, in the order in which they ended; the last end is that time.
std::vector<PieceSpan> overlapped_pieces(std::span<const LayerPieces> forward,
                                         std::span<const LayerPieces> backward,
                                         const OverlapRules& rules);

}  // namespace moesim::parallel
