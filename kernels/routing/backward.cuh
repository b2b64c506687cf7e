#pragma once

#include "kernels/routing/token_logits.cuh"

// The router's backward, one token per group of lanes: g is made from the logits once more, in the
// same bits, which costs less than storing it. Reads 4 E bytes a token and writes as many.
//   differentiated    dL/da_l = [l in R] w_l (u_l - v)
//   straight-through  dL/da_l = [l in R] w_l u_l - g_l v        (Zeng et al. 2024)
// with v = sum_j w_j u_j over the rows that processed the token, the IR row among them.
namespace moesim::kernels::routing {

inline constexpr int backward_threads = 256;

template <int lanes, int values>
MOESIM_KERNEL(backward_threads)
route_backward(BackwardArguments in) {
  const int token = (block_index() * block_threads() + thread_index()) / lanes;
  const bool there = token < in.tokens;
  TokenLogits<lanes, values> logits;
  logits.experts = in.experts;
  const std::int64_t row = static_cast<std::int64_t>(there ? token : 0) * in.experts;
  for (int value = 0; value < values; ++value) {
    const int expert = logits.expert_at(value);
    logits.logit[value] =
        there && expert < in.experts ? load_constant(in.logits + row + expert) : 0.0F;
  }
  logits.prepare();
  if (!there) return;
  float gradient[values] = {};
  float mean = 0;
  const auto add_row = [&](int expert, float weight, float upstream) {
    mean = multiply_add(weight, upstream, mean);
    for (int value = 0; value < values; ++value) {
      if (logits.expert_at(value) == expert) {
        gradient[value] = multiply_add(weight, upstream, gradient[value]);
      }
    }
  };
  for (int choice = 0; choice < in.choices; ++choice) {
    const std::int64_t at = choice * in.stride + token;
    if (in.slot[at] == slot_failed) continue;
    add_row(in.expert[at], in.weight[at], in.upstream[at]);
  }
  if (in.rectified && in.ir_expert[token] != no_expert) {
    add_row(in.ir_expert[token], in.ir_weight[token], in.ir_upstream[token]);
  }
  const bool constant = in.normaliser == NormaliserRule::straight_through;
  const auto take_mean = [&](int expert, float weight) {
    for (int value = 0; value < values; ++value) {
      if (logits.expert_at(value) == expert) gradient[value] -= weight * mean;
    }
  };
  for (int choice = 0; !constant && choice < in.choices; ++choice) {
    const std::int64_t at = choice * in.stride + token;
    if (in.slot[at] != slot_failed) take_mean(in.expert[at], in.weight[at]);
  }
  if (!constant && in.rectified && in.ir_expert[token] != no_expert) {
    take_mean(in.ir_expert[token], in.ir_weight[token]);
  }
  for (int value = 0; value < values; ++value) {
    const int expert = logits.expert_at(value);
    if (expert >= in.experts) continue;
    float result = gradient[value];
    if (constant && mean != 0) result -= logits.probability(logits.logit[value]) * mean;
    in.gradient[row + expert] = logits.valid ? result : 0.0F;
  }
}

}  // namespace moesim::kernels::routing
