#pragma once

#include <vector>

#include "sim/base/units.hpp"
#include "sim/model/memory/kept_activations.hpp"
#include "sim/model/memory/stage_weights.hpp"
#include "sim/model/memory/training_exchanges.hpp"

namespace moesim::model {

// A chunk of a stage and how many of its micro-batches are held at the peak.
struct HeldChunk {
  StageContent content;
  double in_flight = 1;
  // Those of in_flight that wait for their weight gradient: what was recomputed for the input
  // gradient is held until then.
  double waiting = 0;
  // Passes between their loss and its gradient, where the chunk has the head: GPipe's all.
  int losses = 1;
};

struct StageMemoryQuery {
  const Model* model = nullptr;
  ShardSizes shards;
  int experts = 0;
  int copies = 0;  // of `experts`: their optimizer states are those of the experts they copy
  std::vector<HeldChunk> chunks;
  double tokens = 0;  // T of a tensor-parallel group, one micro-batch
  ContextMethod context = ContextMethod::ring;
  double reserved_buffers = 0;  // bytes that a dispatcher reserves for exchanges of rows
  double gathered_buffers = 0;  // bytes of gathered tokens, in the place of rows; 0: none are
  StateRules states;
  ActivationRules activations;
};

struct StageMemory {
  Bytes weights;
  Bytes gradients;
  Bytes optimizer;
  Bytes activations;  // kept, over all micro-batches in flight; offloaded ones of two layers
  // What is recomputed of the layer whose backward pass runs, the largest one. None where passes
  // wait for their weight gradients: that layer is then in `activations`.
  Bytes recomputed;
  // In fp32, 4 V per token of each pass between its loss and its gradient, and 4 V for each depth's
  // loss of it; their gradient, 2 V, of one. So 6 V for one pass.
  Bytes logits;
  // Used by all layers. Dispatch and combine: 4 k T' h in bf16, or what is reserved if that is
  // more. Keys, values and their gradients
  // that context ranks gather, of all of them, or of two at a time that go round in a ring.
  Bytes exchange_buffers;
  Bytes offloaded;  // in the host's memory, not in total()

  Bytes states() const { return weights + gradients + optimizer; }
  Bytes total() const { return states() + activations + recomputed + logits + exchange_buffers; }
};
// The memory of a stage without what libraries and the CUDA context reserve. Throws UsageError for
// sizes out of range.
StageMemory stage_memory(const StageMemoryQuery& query);

// Shares of a chunk's activations that its layers have, in the order of the forward pass,
// prediction depths last; sum 1. Of a chunk without layers, or of which whole layers are
// recomputed, none.
std::vector<double> layer_shares(const StageMemoryQuery& query, const StageContent& content);

}  // namespace moesim::model
