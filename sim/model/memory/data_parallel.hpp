#pragma once

#include "sim/model/memory/training_memory.hpp"

namespace moesim::model {

// Bytes of the buffers that data-parallel ranks exchange, apart for the dense weights, over data
// and context ranks, and those of experts, over expert-data ranks.
struct BufferBytes {
  double dense = 0;
  double expert = 0;
};

// The bytes of the gradients that are reduced, in the type that they are added up in.
BufferBytes reduced_bytes(const StageParameters& parameters, const StateRules& rules);
// The bytes of the weights that ZeRO 1 to 3 gather: 2 a weight, less for those of products with
// low_precision_gather; embedding, head, router and norms stay in bf16.
BufferBytes gathered_bytes(const StageParameters& parameters, const StateRules& rules);

// Weights whose optimizer state this rank keeps.
double owned_parameters(const StageParameters& parameters, const ShardSizes& shards,
                        const StateRules& rules);
// Bytes of GPU memory that Adam moves per owned weight: reads gradient, master and moments, writes
// master, moments and the bf16 weight: 30 with fp32 moments, 22 with bf16.
double adam_bytes(const StateRules& rules);
// Bytes per weight of products that making the copies which low-precision GEMMs read moves, once
// per step (Transformer Engine, is_first_microbatch): from bf16, or the copy by column from that by
// row which was gathered. 0 in bf16.
double weight_cast_bytes(const StateRules& rules);
// Bytes that the end of a step moves: Adam, the gradients read for their norm, read and written to
// scale them, and cleared, the weights cast.
double optimizer_bytes(const StageParameters& parameters, const ShardSizes& shards,
                       const StateRules& rules);
// Clearing a gradient buffer in fp32 at the start of a step.
double clear_gradient_bytes(const StageParameters& parameters, const ShardSizes& shards,
                            const StateRules& rules);

}  // namespace moesim::model
