#pragma once

#include <cstdint>

#include "sim/model/model.hpp"

namespace moesim::model {

// FLOPs per token (a multiply-add is 2) of one training step, whatever rank does them. Embedding,
// norms, rotary embedding and biases are not counted.
//
// `length` is the mean length that a token's sequence has: the sum of squared lengths over the sum
// of lengths. Of sequences packed from documents it is less than the sequence length; windows are
// then counted as if all documents had it.

// The forward pass of one layer. The parts are those that can be priced, split over ranks or
// recomputed apart; a part that the layer does not have is 0.
struct LayerWork {
  double projections = 0;       // of all attention blocks
  double core_attention = 0;    // query-key products and weighted values
  double linear_attention = 0;  // in its place, convolution and states: LinearAttention
  double dense_ffn = 0;
  double router = 0;
  double shared_experts = 0;
  double expert_row = 0;  // one row of one expert

  // `rows`: rows of experts per token.
  double total(double rows) const {
    return projections + core_attention + linear_attention + dense_ffn + router + shared_experts +
           rows * expert_row;
  }
};
LayerWork layer_work(const Model& model, int layer, double length);

// Keys that a token attends to in self-attention, on average over its sequence: all of them without
// a mask, half of them under a causal one, w - w (w - 1) / (2 s) in a sliding window w < s.
double keys_seen(const Model& model, int layer, double length);

double head_work(const Model& model);            // 2 h V
double mtp_projection_work(const Model& model);  // 4 h^2: two hidden vectors to one

// Model FLOPs per token, forward and backward, by Megatron's definition (megatron/training/
// training.py, num_floating_point_operations): 3 times the forward pass; `choices` experts per
// token whatever is dropped or padded; causal halves; no router, no recomputation; the head once
// more for each multi-token-prediction depth. choices = 0: the dense counterpart of a model with
// experts.
struct ModelFlops {
  double total = 0;
  double core_attention = 0;  // of the total, of layers with softmax attention
};
ModelFlops model_flops(const Model& model, double length, double choices, int mtp_depths);

}  // namespace moesim::model
