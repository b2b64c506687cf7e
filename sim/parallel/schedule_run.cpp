#include "sim/parallel/schedule_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <utility>

#include "sim/base/error.hpp"

namespace moesim::parallel {
namespace {

constexpr Picoseconds not_yet{-1};

// When each pass was done, by micro-batch and stage.
class Done {
 public:
  explicit Done(const ScheduleShape& shape)
      : stages_(static_cast<std::size_t>(shape.stages())),
        ends_(stages_ * static_cast<std::size_t>(shape.micro_batches), not_yet) {}
  Picoseconds& operator[](const ChunkPass& pass) {
    return ends_[static_cast<std::size_t>(pass.micro_batch) * stages_ +
                 static_cast<std::size_t>(pass.stage)];
  }

 private:
  std::size_t stages_;
  std::vector<Picoseconds> ends_;
};

class Runner {
 public:
  Runner(const Schedule& schedule, const OperationTime& time, const std::vector<Picoseconds>& p2p,
         bool p2p_occupies_rank)
      : schedule_(schedule),
        shape_(schedule.shape),
        time_(time),
        p2p_(p2p),
        p2p_occupies_rank_(p2p_occupies_rank),
        stages_(shape_.stages()),
        forward_(shape_),
        backward_(shape_),
        next_(schedule.ranks.size(), 0),
        free_(schedule.ranks.size()) {
    run_.ranks.resize(schedule.ranks.size());
  }

  ScheduleRun run() {
    for (int rank = 0; rank < shape_.ranks; ++rank) awake_.push_back(rank);
    while (!awake_.empty()) {
      const int rank = awake_.back();
      awake_.pop_back();
      advance(rank);
    }
    check_finished();
    for (std::size_t rank = 0; rank < run_.ranks.size(); ++rank) {
      RankRun& use = run_.ranks[rank];
      use.idle = run_.makespan - use.busy;
      use.held = held_of(static_cast<int>(rank), {1, 0, {}});
      use.held_until_weight_gradient = held_of(static_cast<int>(rank), {1, 1, {}});
    }
    return std::move(run_);
  }

 private:
  // Passes that a rank holds at most, all stages alike.
  int held_of(int rank, const PassWeight& weight) const {
    int sum = 0;
    const std::vector<PassWeight> alike(static_cast<std::size_t>(stages_), weight);
    for (const HeldPasses& held : held_at_peak(schedule_, rank, alike)) {
      sum += held.all - (weight.waiting > 0 ? 0 : held.waiting);
    }
    return sum;
  }

  // Runs operations of a rank until one has to wait.
  void advance(int rank) {
    const auto at = static_cast<std::size_t>(rank);
    const std::vector<PipelineOperation>& operations = schedule_.ranks[at];
    while (next_[at] < operations.size()) {
      const PipelineOperation& operation = operations[next_[at]];
      Picoseconds start = free_[at];
      if (!wait_for_inputs(rank, operation, start)) return;
      const Picoseconds end = start + time_(operation);
      run_.ranks[at].spans.push_back({start, end});
      run_.ranks[at].busy += end - start;
      run_.makespan = std::max(run_.makespan, end);
      const Picoseconds sending = finish(rank, operation, end);
      free_[at] = p2p_occupies_rank_ ? end + sending : end;
      ++next_[at];
    }
  }

  // The time of a message between a stage and one beside it.
  Picoseconds p2p(int stage, int other) const {
    return p2p_[static_cast<std::size_t>(std::min(stage, other))];
  }

  // Whether all inputs are known; moves `start` to where they are there.
  bool wait_for_inputs(int rank, const PipelineOperation& operation, Picoseconds& start) {
    // What `stage` made of a micro-batch, for a stage beside it or the same one.
    const auto has = [&](Done& done, const ChunkPass& pass, int stage) {
      const Picoseconds end = done[{pass.micro_batch, stage}];
      if (end == not_yet) return false;
      const bool sent = shape_.rank_of(stage, pass.micro_batch) != rank;
      start = std::max(start, sent ? end + p2p(stage, pass.stage) : end);
      return true;
    };
    const ChunkPass& pass = operation.pass;
    if (operation.kind == OperationKind::weight_gradient) return has(backward_, pass, pass.stage);
    if (operation.is_forward() && pass.stage > 0 && !has(forward_, pass, pass.stage - 1)) {
      return false;
    }
    if (!operation.is_backward()) return true;
    const ChunkPass& back = operation.backward_pass();
    return has(forward_, back, back.stage) &&
           (back.stage + 1 == stages_ || has(backward_, back, back.stage + 1));
  }

  // Notes the results and wakes the ranks that may wait for them; returns what the longest send to
  // such a rank takes.
  Picoseconds finish(int rank, const PipelineOperation& operation, Picoseconds end) {
    Picoseconds sending;
    const auto tell = [&](const ChunkPass& pass, int stage) {
      if (stage < 0 || stage == stages_) return;
      const int other = shape_.rank_of(stage, pass.micro_batch);
      if (other == rank) return;
      sending = std::max(sending, p2p(pass.stage, stage));
      awake_.push_back(other);
    };
    if (operation.is_forward()) {
      forward_[operation.pass] = end;
      tell(operation.pass, operation.pass.stage + 1);
    }
    if (operation.is_backward()) {
      const ChunkPass& pass = operation.backward_pass();
      backward_[pass] = end;
      tell(pass, pass.stage - 1);
    }
    return sending;
  }

  void check_finished() const {
    for (std::size_t rank = 0; rank < next_.size(); ++rank) {
      const std::vector<PipelineOperation>& operations = schedule_.ranks[rank];
      if (next_[rank] == operations.size()) continue;
      const PipelineOperation& operation = operations[next_[rank]];
      throw Error(fmt::format(
          "pipeline schedule: rank {} waits for ever at its operation {} of {} (micro-batch {}, "
          "stage {}): its inputs come later or never",
          rank, next_[rank] + 1, operations.size(), operation.pass.micro_batch,
          operation.pass.stage));
    }
  }

  const Schedule& schedule_;
  const ScheduleShape& shape_;
  const OperationTime& time_;
  const std::vector<Picoseconds>& p2p_;
  bool p2p_occupies_rank_;
  int stages_;
  Done forward_;
  Done backward_;
  std::vector<std::size_t> next_;  // operation of each rank
  std::vector<Picoseconds> free_;
  std::vector<int> awake_;
  ScheduleRun run_;
};

// What a rank holds as it runs its operations, and what it held when that was most.
class HeldSum {
 public:
  explicit HeldSum(const std::vector<PassWeight>& weights)
      : weights_(weights), held_(weights.size()), at_peak_(held_) {}

  void add(const PipelineOperation& operation) {
    if (goes_by_layers(operation)) return add_layers(operation);
    if (operation.is_forward()) {
      change(weights_[at(operation.pass)].before);
      ++held_[at(operation.pass)].all;
    }
    if (!operation.is_backward() && !operation.has_weight_gradient()) return;
    const std::size_t stage = at(operation.backward_pass());
    const PassWeight& weight = weights_[stage];
    const bool waits = operation.is_backward() && !operation.has_weight_gradient();
    const bool waited = !operation.is_backward();
    change(waits ? weight.waiting - weight.before : waited ? -weight.waiting : -weight.before);
    held_[stage].waiting += waits ? 1 : waited ? -1 : 0;
    held_[stage].all -= waits ? 0 : 1;
  }

  std::vector<HeldPasses> at_peak() {
    change(-1);
    return at_peak_;
  }

 private:
  static std::size_t at(const ChunkPass& pass) { return static_cast<std::size_t>(pass.stage); }

  // Copies are made where the sum stops rising, not at every step up.
  void change(double by) {
    if (by < 0 && rising_ && sum_ > peak_) peak_ = sum_, at_peak_ = held_;
    if (by != 0) rising_ = by > 0;
    sum_ += by;
  }

  bool goes_by_layers(const PipelineOperation& operation) const {
    return operation.kind == OperationKind::forward_backward &&
           !weights_[at(operation.pass)].layers.empty() &&
           !weights_[at(operation.paired)].layers.empty();
  }

  void add_layers(const PipelineOperation& operation) {
    const PassWeight& forward = weights_[at(operation.pass)];
    const PassWeight& backward = weights_[at(operation.paired)];
    const std::size_t layers = std::max(forward.layers.size(), backward.layers.size());
    double added = 0;
    double dropped = 0;
    for (std::size_t layer = 0; layer < layers; ++layer) {
      if (layer < forward.layers.size()) added += forward.layers[layer];
      const double sum = sum_ + added * forward.before - dropped * backward.before;
      if (sum > peak_) {
        peak_ = sum, at_peak_ = held_;
        at_peak_[at(operation.pass)].part += added;
        at_peak_[at(operation.paired)].part -= dropped;
      }
      if (layer < backward.layers.size()) {
        dropped += backward.layers[backward.layers.size() - 1 - layer];
      }
    }
    sum_ += forward.before - backward.before;
    ++held_[at(operation.pass)].all;
    --held_[at(operation.paired)].all;
    rising_ = forward.before > backward.before;
  }

  const std::vector<PassWeight>& weights_;
  std::vector<HeldPasses> held_;
  std::vector<HeldPasses> at_peak_;
  double sum_ = 0;
  double peak_ = 0;
  bool rising_ = false;
};

Picoseconds duration(const PipelineTimes& times, const PipelineOperation& operation) {
  const StageTimes& own = times.stages[static_cast<std::size_t>(operation.pass.stage)];
  if (operation.kind != OperationKind::forward_backward) return own.of(operation.kind);
  const auto back = static_cast<std::size_t>(operation.paired.stage);
  if (times.pairs.empty()) {
    return own.forward + times.stages[back].of(OperationKind::backward);
  }
  const auto ahead = static_cast<std::size_t>(operation.pass.stage);
  return times.pairs[ahead * times.stages.size() + back];
}

}  // namespace

Picoseconds StageTimes::of(OperationKind kind) const {
  switch (kind) {
    case OperationKind::forward:
      return forward;
    case OperationKind::input_gradient:
      return input_gradient;
    case OperationKind::weight_gradient:
      return weight_gradient;
    case OperationKind::backward:
      return input_gradient + weight_gradient;
    case OperationKind::forward_backward:
      break;
  }
  return forward + input_gradient + weight_gradient;
}

double ScheduleRun::bubble_share() const {
  if (makespan.count == 0) return 0;
  double idle = 0;
  for (const RankRun& rank : ranks) idle += static_cast<double>(rank.idle.count);
  return idle / (static_cast<double>(makespan.count) * static_cast<double>(ranks.size()));
}

std::vector<HeldPasses> held_at_peak(const Schedule& schedule, int rank,
                                     const std::vector<PassWeight>& weights) {
  HeldSum sum(weights);
  for (const PipelineOperation& operation : schedule.ranks[static_cast<std::size_t>(rank)]) {
    sum.add(operation);
  }
  return sum.at_peak();
}

int losses_held(const Schedule& schedule, int rank) {
  const int last = schedule.shape.stages() - 1;
  int held = 0;
  int most = 0;
  for (const PipelineOperation& operation : schedule.ranks[static_cast<std::size_t>(rank)]) {
    const bool is_pair = operation.kind == OperationKind::forward_backward;
    if (is_pair && operation.paired.stage == last) --held;
    if (operation.pass.stage != last) continue;
    if (operation.is_forward()) most = std::max(most, ++held);
    if (!is_pair && operation.is_backward()) --held;
  }
  return most;
}

ScheduleRun run_schedule(const Schedule& schedule, const PipelineTimes& times) {
  assert(static_cast<int>(times.stages.size()) == schedule.shape.stages());
  const OperationTime time = [&](const PipelineOperation& operation) {
    return duration(times, operation);
  };
  const std::vector<Picoseconds> p2p(times.stages.size(), times.p2p);
  return Runner(schedule, time, p2p, times.p2p_occupies_rank).run();
}

ScheduleRun run_schedule(const Schedule& schedule, const OperationTime& time,
                         const std::vector<Picoseconds>& p2p, bool p2p_occupies_rank) {
  assert(static_cast<int>(p2p.size()) + 1 >= schedule.shape.stages());
  return Runner(schedule, time, p2p, p2p_occupies_rank).run();
}

}  // namespace moesim::parallel
