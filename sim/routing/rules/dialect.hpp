#pragma once

#include <cstdint>

#include "sim/routing/rules/router_config.hpp"

namespace moesim::routing {

// Sets the defaults of a library: convention, minimum capacity, priority, weights, padding, and the
// arithmetic of C. Depends on `config.top_k`, which is kept. From the code of
//   deepspeed  deepspeed/moe/sharded_moe.py: C = ceil(S / E * (k CF)) in fp32, at least 4; k = 1
//              keeps random tokens and weighs by g, k = 2 goes by position, more by own score,
//              both weighed over what is kept; k = 2 samples the second expert.
//   megatron   megatron/core/transformer/moe/moe_utils.py: C = ceil(k S / E * CF) in fp64; softmax
//              over the k chosen logits, so the best weights are kept and stay as they were before
//              drops; k = 1: softmax before the choice. Nothing is padded. A group of experts is
//              worth the sum of its k / kept groups best logits.
//   tutel      tutel/impls/fast_dispatch.py: C = k int(CF * ceil(S / E)); position; weights
//              before drops, of k = 1 plain g.
//   switch     mesh_tensorflow/transformer/moe.py: C = min(S, int(S CF / E)), at least 4, CF not
//              multiplied by k; position; k = 1 plain g, else g over the sum of the k
//              chosen.
//   megablocks megablocks/layers/moe.py: C = int(CF k S / E) in fp64; a token's choices queue
//              together, tokens in order (ops.sort of the flat choices is stable); plain g
//              (moe_normalize_expert_weights unset). Only rows kept are sent.
//   paper      exact decimals, token-max, weights over what is kept.
// Slots are numbered in the same way in all dialects: by choice, then token.
void apply_dialect(Dialect dialect, RouterConfig& config);

// C before the minimum capacity, in the arithmetic of the dialect's library, including binary
// rounding: S = 3,000, E = 8, CF = 2.2, k = 1 is 825 in fp32 and 826 in fp64. Not for
// Dialect::paper. Throws UsageError if the library does not define it (the other capacity
// convention).
std::int64_t dialect_capacity(const RouterConfig& config, std::int64_t tokens,
                              std::int64_t experts);

}  // namespace moesim::routing
