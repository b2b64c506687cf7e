#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/enum_names.hpp"

namespace moesim::parallel {

enum class ScheduleKind { gpipe, one_f_one_b, interleaved, zb_h1, zb_h2, dualpipe, dualpipe_v };
inline constexpr EnumNames<ScheduleKind, 7> schedule_names{{
    {ScheduleKind::gpipe, "gpipe", "all forward passes, then all backward passes"},
    {ScheduleKind::one_f_one_b, "1f1b", "one forward, one backward"},
    {ScheduleKind::interleaved, "interleaved", "1f1b with several chunks per rank"},
    {ScheduleKind::zb_h1, "zb-h1", "weight gradients fill bubbles, memory of 1f1b"},
    {ScheduleKind::zb_h2, "zb-h2", "fewer bubbles, twice the memory"},
    {ScheduleKind::dualpipe, "dualpipe", "both directions, two stages per rank"},
    {ScheduleKind::dualpipe_v, "dualpipe-v", "dualpipe folded: two stages per rank, once"},
}};

// DualPipe, or its folded form.
constexpr bool is_dual(ScheduleKind kind) {
  return kind == ScheduleKind::dualpipe || kind == ScheduleKind::dualpipe_v;
}

// Whether every backward pass is computed in two operations, input gradients apart from weight
// gradients; of DualPipe only some are.
constexpr bool splits_backward(ScheduleKind kind) {
  return kind == ScheduleKind::zb_h1 || kind == ScheduleKind::zb_h2;
}

// Everything that the order of a pipeline's operations depends on.
struct ScheduleShape {
  ScheduleKind kind = ScheduleKind::one_f_one_b;
  int ranks = 1;                // PP
  int virtual_stages = 1;       // chunks per rank; of interleaved alone more than 1
  int micro_batches = 1;        // m, of dualpipe both directions together
  int group = 0;                // interleaved: micro-batches that pass a chunk in a row; 0: `ranks`
  bool expert_overlap = false;  // 1f1b and interleaved: forward and backward in pairs

  int group_size() const { return group > 0 ? group : ranks; }
  // Whether some operations are forward_backward.
  bool has_pairs() const { return expert_overlap || is_dual(kind); }
  // Chunks that a micro-batch passes. Stage j comes before stage j + 1.
  int stages() const;
  // Where a stage is computed: on rank j mod PP; dualpipe-v: up and back; dualpipe: micro-batches
  // of the second half pass the ranks in the other direction.
  int rank_of(int stage, int micro_batch) const;
  // All stages whose weights a rank has, in ascending order: under dualpipe those of both
  // directions.
  std::vector<int> stages_of(int rank) const;
};

// Why a schedule of this shape cannot be; nothing where it can.
std::optional<std::string> schedule_refusal(const ScheduleShape& shape);

// backward: input and weight gradient in one. forward_backward: a forward pass and the backward
// pass of another chunk or micro-batch at the same time.
enum class OperationKind : std::uint8_t {
  forward,
  backward,
  input_gradient,
  weight_gradient,
  forward_backward,
};

// One micro-batch in one stage.
struct ChunkPass {
  int micro_batch = 0;
  int stage = 0;
  bool operator==(const ChunkPass&) const = default;
};

struct PipelineOperation {
  OperationKind kind = OperationKind::forward;
  ChunkPass pass;
  ChunkPass paired;  // forward_backward: what is computed backward

  bool is_forward() const {
    return kind == OperationKind::forward || kind == OperationKind::forward_backward;
  }
  // Whether it gives the gradient that the stage before waits for.
  bool is_backward() const {
    return kind != OperationKind::forward && kind != OperationKind::weight_gradient;
  }
  bool has_weight_gradient() const {
    return kind != OperationKind::forward && kind != OperationKind::input_gradient;
  }
  const ChunkPass& backward_pass() const {
    return kind == OperationKind::forward_backward ? paired : pass;
  }
};

// The operations of each rank, in the order in which it runs them.
struct Schedule {
  ScheduleShape shape;
  std::vector<std::vector<PipelineOperation>> ranks;
};

// gpipe: Huang et al. 2018 (arXiv:1811.06965). 1f1b and interleaved: Narayanan et al. 2021
// (arXiv:2104.04473) as Megatron-Core orders them (megatron/core/pipeline_parallel/schedules.py),
// with one more forward pass before the pairs where experts overlap. zb-h1, zb-h2: Qi et al. 2023
// (arXiv:2401.10241). dualpipe, dualpipe-v: the eight phases of deepseek-ai/DualPipe.
// Throws UsageError with the text of schedule_refusal().
Schedule make_schedule(const ScheduleShape& shape);

}  // namespace moesim::parallel
