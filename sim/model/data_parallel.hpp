#pragma once

#include "sim/model/training_memory.hpp"

namespace moesim::model {

// What data-parallel training moves beside the passes of a step, on one rank.
struct DataParallelRules {
  StateRules states;       // states.zero: which of it is shared
  int gradient_bytes = 4;  // per element reduced; 2: bf16
  int micro_batches = 1;   // m, per step
};

// Bytes that a rank sends per step, apart for the dense weights, over data and context ranks, and
// those of experts, over expert-data ranks.
struct DataParallelBytes {
  double dense = 0;
  double expert = 0;

  double total() const { return dense + expert; }
};

// Of gradients: 4 n (D - 1) / D under ZeRO 1, in every micro-batch under ZeRO 2 and 3, and with
// zero 0 an all-reduce (twice that). Several optimizer instances reduce over D / i and then
// all-reduce the shard over i, under ZeRO 3 in the last micro-batch only.
DataParallelBytes gradient_bytes(const StageParameters& parameters, const ShardSizes& shards,
                                 const DataParallelRules& rules);
// Of weights: 2 n (D - 1) / D, less with states.low_precision_gather; twice in every micro-batch
// under ZeRO 3, none with zero 0.
DataParallelBytes weight_bytes(const StageParameters& parameters, const ShardSizes& shards,
                               const DataParallelRules& rules);

// Weights whose optimizer state this rank keeps.
double owned_parameters(const StageParameters& parameters, const ShardSizes& shards,
                        const StateRules& rules);
// Bytes of GPU memory that Adam moves per owned weight: reads gradient, master and moments, writes
// master, moments and the bf16 weight: 30 with fp32 moments, 22 with bf16.
double adam_bytes(const StateRules& rules);
// Bytes that the end of a step moves: Adam, the gradients read for their norm, read and written to
// scale them, and cleared.
double optimizer_bytes(const StageParameters& parameters, const ShardSizes& shards,
                       const StateRules& rules);
// Clearing a gradient buffer in fp32 at the start of a step.
double clear_gradient_bytes(const StageParameters& parameters, const ShardSizes& shards,
                            const StateRules& rules);

}  // namespace moesim::model
