#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/model/memory/training_exchanges.hpp"
#include "sim/model/model.hpp"
#include "sim/parallel/parallel_layout.hpp"
#include "sim/parallel/pipeline_layout.hpp"
#include "sim/parallel/schedule.hpp"

namespace moesim::parallel {

// The most sequences of a step, and tokens of a sequence.
inline constexpr std::int64_t most_sequences = 1 << 30;
// The most sequences of a micro-batch, and micro-batches of a group.
inline constexpr std::int64_t most_micro_batch = 1 << 20;

// A training job as it is asked for.
struct LayoutRequest {
  ParallelLayout sizes;
  int expert_domain = 0;  // above 0: EP is no one's choice, but the widest in such a domain
  std::optional<ScheduleKind> schedule;  // not given: interleaved with virtual stages, else 1f1b
  int micro_batch_group = 0;             // interleaved, as ScheduleShape::group
  bool expert_overlap = false;
  bool recomputes_experts = false;       // full recomputation, or of the MoE layer
  std::optional<PipelineLayout> stages;  // not given: evenly divided
  model::ContextMethod context_method = model::ContextMethod::ring;
  bool sequence_parallel = true;  // beside tensor parallelism
  std::int64_t sequence_length = 0;
  std::int64_t micro_batch = 1;   // sequences
  std::int64_t global_batch = 0;  // sequences of a step; 0: so many that m is 4 x PP

  std::int64_t sequences_at_once() const;  // in one micro-batch of all data-parallel ranks
  // m of each pipeline. Preconditions of all three: as for ParallelLayout, and the batch divides.
  int micro_batches() const;
  std::int64_t sequences() const;  // of a step
  ScheduleShape shape() const;
  ScheduleKind kind() const;  // that shape() has; any request has one
};

// The widest expert parallelism that divides the experts and the ranks of a stage, inside a domain
// of so many ranks.
int widest_expert_parallel(const model::Model& model, const ParallelLayout& layout, int domain);

// Why GPUs cannot be divided into these groups, and why a pipeline cannot have as many chunks, as
// sentences; nothing: they can. Two of the rules of layout_refusal(), which need no model.
std::optional<std::string> ranks_refusal(const ParallelLayout& layout);
std::optional<std::string> chunks_refusal(const ParallelLayout& layout);

// The first rule that a request breaks, as a sentence that names the option; nothing if it can be.
// The rules are those of Megatron-Core (transformer_config.py, parallel_state.py, moe_layer.py,
// schedules.py) that follow from the model and the sizes.
std::optional<std::string> layout_refusal(const model::Model& model, const LayoutRequest& request);

// The chunks of a request: those it gives, or the layers divided evenly. Precondition:
// layout_refusal() has nothing.
PipelineLayout stages_of(const model::Model& model, const LayoutRequest& request);

}  // namespace moesim::parallel
