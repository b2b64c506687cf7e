#include "sim/parallel/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/base/error.hpp"
#include "sim/parallel/dual_pipe.hpp"

namespace moesim::parallel {
namespace {

using Operations = std::vector<PipelineOperation>;

std::vector<ChunkPass> passes_of_one_stage(int stage, int micro_batches) {
  std::vector<ChunkPass> passes;
  for (int micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
    passes.push_back({micro_batch, stage});
  }
  return passes;
}

// All passes of a rank: a group of micro-batches through its chunks, the first chunk first
// (backward: the last), then the next group.
std::vector<ChunkPass> interleaved_passes(const ScheduleShape& shape, int rank, bool backward) {
  std::vector<ChunkPass> passes;
  const int group = shape.group_size();
  for (int first = 0; first < shape.micro_batches; first += group) {
    const int end = std::min(first + group, shape.micro_batches);
    for (int chunk = 0; chunk < shape.virtual_stages; ++chunk) {
      const int held = backward ? shape.virtual_stages - 1 - chunk : chunk;
      for (int micro_batch = first; micro_batch < end; ++micro_batch) {
        passes.push_back({micro_batch, held * shape.ranks + rank});
      }
    }
  }
  return passes;
}

// `warm_up` forward passes, then a forward and a backward pass by turns (or as pairs), then the
// other backward passes.
Operations one_f_one_b(const std::vector<ChunkPass>& forward,
                       const std::vector<ChunkPass>& backward, std::size_t warm_up, bool paired) {
  const std::size_t first = std::min(warm_up, forward.size());
  Operations operations;
  for (std::size_t at = 0; at < first; ++at) {
    operations.push_back({OperationKind::forward, forward[at], {}});
  }
  for (std::size_t at = first; at < forward.size(); ++at) {
    if (paired) {
      operations.push_back({OperationKind::forward_backward, forward[at], backward[at - first]});
    } else {
      operations.push_back({OperationKind::forward, forward[at], {}});
      operations.push_back({OperationKind::backward, backward[at - first], {}});
    }
  }
  for (std::size_t at = forward.size() - first; at < backward.size(); ++at) {
    operations.push_back({OperationKind::backward, backward[at], {}});
  }
  return operations;
}

Operations turns_of_rank(const ScheduleShape& shape, int rank) {
  const std::vector<ChunkPass> forward = interleaved_passes(shape, rank, false);
  const std::vector<ChunkPass> backward = interleaved_passes(shape, rank, true);
  const int after = shape.ranks - 1 - rank;
  const int plain = shape.virtual_stages == 1
                        ? after
                        : 2 * after + (shape.virtual_stages - 1) * shape.group_size();
  const int warm_up = shape.expert_overlap ? plain + 1 : plain;
  return one_f_one_b(forward, backward, static_cast<std::size_t>(warm_up), shape.expert_overlap);
}

Operations gpipe(const ScheduleShape& shape, int rank) {
  const std::vector<ChunkPass> passes = passes_of_one_stage(rank, shape.micro_batches);
  return one_f_one_b(passes, passes, passes.size(), false);
}

// 1f1b whose weight gradients wait: one is computed before a forward pass that would hold more than
// `limit` micro-batches, and, after the last forward pass, before each backward pass.
class ZeroBubble {
 public:
  ZeroBubble(const ScheduleShape& shape, int rank)
      : rank_(rank),
        micro_batches_(shape.micro_batches),
        limit_(shape.kind == ScheduleKind::zb_h1 ? shape.ranks : 2 * shape.ranks - 1),
        warm_up_(std::min((shape.ranks - 1 - rank) * (shape.kind == ScheduleKind::zb_h1 ? 1 : 2),
                          shape.micro_batches)) {}

  Operations operations() {
    while (forward_ < warm_up_) add_forward();
    while (forward_ < micro_batches_) {
      add_forward();
      add(OperationKind::input_gradient, input_);
    }
    while (input_ < micro_batches_) {
      if (weight_ < input_) add(OperationKind::weight_gradient, weight_);
      add(OperationKind::input_gradient, input_);
    }
    while (weight_ < micro_batches_) add(OperationKind::weight_gradient, weight_);
    return operations_;
  }

 private:
  void add(OperationKind kind, int& count) {
    operations_.push_back({kind, {count, rank_}, {}});
    ++count;
  }
  void add_forward() {
    while (forward_ - weight_ >= limit_ && weight_ < input_) {
      add(OperationKind::weight_gradient, weight_);
    }
    add(OperationKind::forward, forward_);
  }

  int rank_;
  int micro_batches_;
  int limit_;
  int warm_up_;
  int forward_ = 0;
  int input_ = 0;
  int weight_ = 0;
  Operations operations_;
};

Operations operations_of(const ScheduleShape& shape, int rank) {
  switch (shape.kind) {
    case ScheduleKind::gpipe:
      return gpipe(shape, rank);
    case ScheduleKind::one_f_one_b:
    case ScheduleKind::interleaved:
      return turns_of_rank(shape, rank);
    case ScheduleKind::zb_h1:
    case ScheduleKind::zb_h2:
      return ZeroBubble(shape, rank).operations();
    case ScheduleKind::dualpipe:
    case ScheduleKind::dualpipe_v:
      return dual_pipe_operations(shape, rank);
  }
  return {};
}

std::optional<std::string> group_refusal(const ScheduleShape& shape) {
  const int group = shape.group_size();
  if (shape.micro_batches < shape.ranks) {
    return fmt::format(
        "--virtual-pipeline {} needs at least as many micro-batches as --pipeline-parallel {}, not "
        "{}: give more --global-batch",
        shape.virtual_stages, shape.ranks, shape.micro_batches);
  }
  if (group < shape.ranks || group > shape.micro_batches) {
    return fmt::format(
        "--micro-batch-group {}: with --virtual-pipeline {} a group has from --pipeline-parallel "
        "({}) to all micro-batches ({})",
        group, shape.virtual_stages, shape.ranks, shape.micro_batches);
  }
  const int rest = shape.micro_batches % group;
  if (rest != 0 && rest < shape.ranks) {
    return fmt::format(
        "{} micro-batches in groups of {} leave a last group of {}: with --virtual-pipeline {} it "
        "has at least --pipeline-parallel ({}) or is full: change {}--global-batch",
        shape.micro_batches, group, rest, shape.virtual_stages, shape.ranks,
        shape.group > 0 ? "--micro-batch-group or " : "");
  }
  return std::nullopt;
}

std::optional<std::string> dual_refusal(const ScheduleShape& shape) {
  const bool both = shape.kind == ScheduleKind::dualpipe;
  const char* const name = name_in(schedule_names, shape.kind);
  if (both && shape.ranks % 2 != 0) {
    return fmt::format("{} pairs ranks: --pipeline-parallel {} is odd", name, shape.ranks);
  }
  if (both && shape.micro_batches % 2 != 0) {
    return fmt::format("{} sends half of the micro-batches in each direction: {} are odd", name,
                       shape.micro_batches);
  }
  if (shape.micro_batches < 2 * shape.ranks) {
    return fmt::format("{} needs at least 2 x --pipeline-parallel = {} micro-batches, not {}", name,
                       2 * shape.ranks, shape.micro_batches);
  }
  return std::nullopt;
}

}  // namespace

int ScheduleShape::stages() const {
  return ranks * virtual_stages * (kind == ScheduleKind::dualpipe_v ? 2 : 1);
}

int ScheduleShape::rank_of(int stage, int micro_batch) const {
  if (kind == ScheduleKind::dualpipe_v) return stage < ranks ? stage : 2 * ranks - 1 - stage;
  const bool turned = kind == ScheduleKind::dualpipe && micro_batch >= micro_batches / 2;
  return turned ? ranks - 1 - stage : stage % ranks;
}

std::vector<int> ScheduleShape::stages_of(int rank) const {
  std::vector<int> found;
  for (int stage = 0; stage < stages(); ++stage) {
    const int holder = rank_of(stage, 0);
    const bool turned = kind == ScheduleKind::dualpipe && holder == ranks - 1 - rank;
    if (holder == rank || turned) found.push_back(stage);
  }
  return found;
}

std::optional<std::string> schedule_refusal(const ScheduleShape& shape) {
  if (shape.ranks < 1 || shape.virtual_stages < 1 || shape.micro_batches < 1) {
    return fmt::format("a schedule of {} ranks, {} virtual stages and {} micro-batches",
                       shape.ranks, shape.virtual_stages, shape.micro_batches);
  }
  const char* const name = name_in(schedule_names, shape.kind);
  const bool interleaved = shape.kind == ScheduleKind::interleaved;
  if (interleaved && (shape.virtual_stages == 1 || shape.ranks == 1)) {
    return fmt::format(
        "{} needs --virtual-pipeline and --pipeline-parallel above 1, not {} and {}: choose 1f1b{}",
        name, shape.virtual_stages, shape.ranks,
        shape.virtual_stages > 1 ? " with --virtual-pipeline 1" : "");
  }
  if (!interleaved && shape.virtual_stages > 1) {
    return fmt::format("{} has no --virtual-pipeline {}: choose {}", name, shape.virtual_stages,
                       shape.ranks > 1 ? "interleaved" : "--virtual-pipeline 1");
  }
  const bool turns = interleaved || shape.kind == ScheduleKind::one_f_one_b;
  if (shape.expert_overlap && !turns) {
    return fmt::format("the exchange of experts is overlapped in 1f1b and interleaved, not in {}{}",
                       name, is_dual(shape.kind) ? ", which has pairs of its own" : "");
  }
  if (shape.expert_overlap && !interleaved && shape.ranks > 1) {
    return "the exchange of experts is overlapped with --pipeline-parallel above 1 only if "
           "--virtual-pipeline is above 1 too";
  }
  if (interleaved) return group_refusal(shape);
  return is_dual(shape.kind) ? dual_refusal(shape) : std::nullopt;
}

Schedule make_schedule(const ScheduleShape& shape) {
  if (const auto refusal = schedule_refusal(shape)) throw UsageError(*refusal);
  Schedule schedule;
  schedule.shape = shape;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    schedule.ranks.push_back(operations_of(shape, rank));
  }
  return schedule;
}

}  // namespace moesim::parallel
