#pragma once

#include <span>

#include "sim/base/units.hpp"

namespace moesim::parallel {

// The pieces of one MoE layer on one rank. A dense layer has its FFN as experts, and no exchanges.
struct LayerPieces {
  Picoseconds attention_forward;  // with the router
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

struct OverlapRules {
  // Weight gradients are computed apart: exchanges need not wait for them.
  bool delayed_weight_gradients = true;
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
// Event simulation in whole picoseconds; precondition: 0 <= exchange_sms < sms.
Picoseconds overlapped_time(std::span<const LayerPieces> forward,
                            std::span<const LayerPieces> backward, const OverlapRules& rules);

}  // namespace moesim::parallel
