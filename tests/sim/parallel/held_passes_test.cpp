// What ranks hold at their peak, by weight and by layers, and whose logits they keep.
#include "sim/parallel/schedule.hpp"
#include "sim/parallel/schedule_run.hpp"
#include "tests/sim/parallel/schedule_shapes.hpp"
#include "tests/support/catch.hpp"

using moesim::parallel::losses_held;
using moesim::parallel::make_schedule;
using moesim::parallel::OperationKind;
using moesim::parallel::overlapped;
using moesim::parallel::PassWeight;
using moesim::parallel::Schedule;
using moesim::parallel::schedule_names;
using moesim::parallel::ScheduleKind;
using moesim::parallel::ScheduleShape;
using moesim::parallel::shape_of;

namespace {

// Weight of what a rank holds at its peak.
double peak_weight(const Schedule& schedule, int rank, const std::vector<PassWeight>& weights) {
  double sum = 0;
  const auto held = moesim::parallel::held_at_peak(schedule, rank, weights);
  for (std::size_t stage = 0; stage < held.size(); ++stage) {
    sum += weights[stage].before * (held[stage].all + held[stage].part);
  }
  return sum;
}

}  // namespace

TEST_CASE("the peak is counted by weight") {
  using Held = std::vector<std::pair<int, int>>;  // of each stage: all, waiting
  const auto held_at_peak = [](const Schedule& schedule, int rank,
                               const std::vector<PassWeight>& weights) {
    Held found;
    for (const auto& held : moesim::parallel::held_at_peak(schedule, rank, weights)) {
      found.emplace_back(held.all, held.waiting);
    }
    return found;
  };
  // Rank 1 of 2, two chunks (stages 1 and 3), m 2: F F F F of warm-up 0 + 2, then by turns:
  // F1 F1 | F3 B3 F3 B3 | B1 B1.
  const Schedule schedule = make_schedule(shape_of(ScheduleKind::interleaved, 2, 2, 2));
  const Held both_chunks = {{0, 0}, {2, 0}, {0, 0}, {1, 0}};
  const PassWeight none = {0, 0, {}};
  CHECK(held_at_peak(schedule, 1, {{}, {}, {}, {}}) == both_chunks);
  CHECK(held_at_peak(schedule, 1, {none, none, none, {}}) == both_chunks);
  // Where the second chunk weighs nothing, nothing is added by it.
  CHECK(held_at_peak(schedule, 1, {{}, {}, {}, none})[1] == std::pair(2, 0));
  // The last rank of ZB-H1: F B, F B, F B, F, then a weight gradient before each further forward.
  const Schedule late = make_schedule(shape_of(ScheduleKind::zb_h1, 4, 8));
  const auto of_last = [](int all, int waiting) {
    return Held{{0, 0}, {0, 0}, {0, 0}, {all, waiting}};
  };
  const auto last = [&](double waiting) {
    return held_at_peak(late, 3, std::vector<PassWeight>(4, {1, waiting, {}}));
  };
  CHECK(last(0).back().first - last(0).back().second == 1);
  CHECK(last(1).back().first == 4);
  // Recomputed for the input gradient, they weigh more while they wait: when none is still to come.
  CHECK(last(3) == of_last(4, 4));
}

// Interleaved 1F1B of 4 ranks with 2 chunks each, a forward beside a backward pass: counted whole
// the ranks hold 12 10 8 6 chunks (schedule_test.cpp); layer by layer a rank holds what it holds
// without pairs, 11 9 7 5, and the layer at work.
TEST_CASE("a pair holds one layer more than its ranks without pairs") {
  const Schedule schedule = make_schedule(overlapped(shape_of(ScheduleKind::interleaved, 4, 8, 2)));
  for (const int layers : {1, 4, 8}) {
    const std::vector<double> alike(static_cast<std::size_t>(layers), 1.0 / layers);
    for (int rank = 0; rank < 4; ++rank) {
      CHECK(peak_weight(schedule, rank, {8, {1, 1, alike}}) ==
            Approx(11 - 2 * rank + 1.0 / layers));
      CHECK(peak_weight(schedule, rank, {8, {1, 1, {}}}) == 12 - 2 * rank);
    }
  }
}

TEST_CASE("unlike chunks of a pair hold most where the one is furthest ahead") {
  Schedule schedule;
  schedule.ranks = {{{OperationKind::forward, {0, 0}, {}},
                     {OperationKind::forward_backward, {0, 1}, {0, 0}},
                     {OperationKind::backward, {0, 1}, {}}}};
  // Layers of 2, 2, 2 come while layers of 1, 1, 1, 1 go: 4, then 6, 7, 8, 7.
  const PassWeight four = {4, 4, {0.25, 0.25, 0.25, 0.25}};
  const PassWeight six = {6, 6, {1.0 / 3, 1.0 / 3, 1.0 / 3}};
  CHECK(peak_weight(schedule, 0, {four, six}) == Approx(8));
  const auto held = moesim::parallel::held_at_peak(schedule, 0, {four, six});
  CHECK(held[0].all == 1);
  CHECK(held[0].part == Approx(-0.5));
  CHECK(held[1].all == 0);
  CHECK(held[1].part == Approx(1));
  // The other way round: 6, then 7, 6, 5, 6 - 6 + 4 behind them.
  CHECK(peak_weight(schedule, 0, {six, four}) == Approx(7));
  // A chunk without layers adds nothing that a pair could hold.
  CHECK(peak_weight(schedule, 0, {four, {0, 0, {}}}) == Approx(4));
}

TEST_CASE("GPipe holds the losses of all micro-batches, others one") {
  for (const auto& [kind, name, help] : schedule_names) {
    CAPTURE(name);
    ScheduleShape shape = shape_of(kind, 4, 8, kind == ScheduleKind::interleaved ? 2 : 1);
    const Schedule schedule = make_schedule(shape);
    CHECK(losses_held(schedule, 1) == 0);
    const int most = kind == ScheduleKind::gpipe ? 8 : 1;
    // Stages of DualPipe go up and down, those of its folded form end where they began.
    const bool ends_below = kind == ScheduleKind::dualpipe || kind == ScheduleKind::dualpipe_v;
    CHECK(losses_held(schedule, 0) == (ends_below ? most : 0));
    CHECK(losses_held(schedule, 3) == (kind == ScheduleKind::dualpipe_v ? 0 : most));
  }
  // The loss of a pair's backward pass is gone before the other's comes.
  CHECK(losses_held(make_schedule(overlapped(shape_of(ScheduleKind::one_f_one_b, 1, 8))), 0) == 1);
  CHECK(losses_held(make_schedule(overlapped(shape_of(ScheduleKind::interleaved, 4, 8, 2))), 3) ==
        1);
}
