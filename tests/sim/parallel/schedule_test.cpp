#include "sim/parallel/schedule.hpp"

#include <set>
#include <tuple>

#include "sim/base/error.hpp"
#include "sim/parallel/schedule_run.hpp"
#include "tests/sim/parallel/schedule_shapes.hpp"
#include "tests/support/catch.hpp"

using moesim::Picoseconds;
using moesim::parallel::ChunkPass;
using moesim::parallel::make_schedule;
using moesim::parallel::OperationKind;
using moesim::parallel::OperationTime;
using moesim::parallel::overlapped;
using moesim::parallel::PipelineOperation;
using moesim::parallel::PipelineTimes;
using moesim::parallel::RankRun;
using moesim::parallel::run_schedule;
using moesim::parallel::Schedule;
using moesim::parallel::schedule_names;
using moesim::parallel::schedule_refusal;
using moesim::parallel::ScheduleKind;
using moesim::parallel::ScheduleRun;
using moesim::parallel::ScheduleShape;
using moesim::parallel::shape_of;
using moesim::parallel::StageTimes;

namespace {

StageTimes stage(int forward, int input_gradient, int weight_gradient) {
  return {Picoseconds(forward), Picoseconds(input_gradient), Picoseconds(weight_gradient)};
}

// Every stage takes the same; `pair` 0: the sum.
ScheduleRun run(const ScheduleShape& shape, StageTimes times, int pair = 0, int p2p = 0) {
  PipelineTimes all;
  const auto stages = static_cast<std::size_t>(shape.stages());
  all.stages.assign(stages, times);
  if (pair > 0) all.pairs.assign(stages * stages, Picoseconds(pair));
  all.p2p = Picoseconds(p2p);
  return run_schedule(make_schedule(shape), all);
}

std::int64_t makespan(const ScheduleShape& shape, StageTimes times, int pair = 0, int p2p = 0) {
  return run(shape, times, pair, p2p).makespan.count;
}

std::vector<int> held(const ScheduleRun& run) {
  std::vector<int> peaks;
  for (const RankRun& rank : run.ranks) peaks.push_back(rank.held);
  return peaks;
}

std::vector<int> held_until_weights(const ScheduleRun& run) {
  std::vector<int> peaks;
  for (const RankRun& rank : run.ranks) peaks.push_back(rank.held_until_weight_gradient);
  return peaks;
}

std::vector<std::int64_t> idle(const ScheduleRun& run) {
  std::vector<std::int64_t> times;
  for (const RankRun& rank : run.ranks) times.push_back(rank.idle.count);
  return times;
}

std::vector<std::int64_t> same(int ranks, std::int64_t value) {
  return std::vector<std::int64_t>(static_cast<std::size_t>(ranks), value);
}

const ScheduleKind gpipe = ScheduleKind::gpipe;
const ScheduleKind one_f_one_b = ScheduleKind::one_f_one_b;
const ScheduleKind interleaved = ScheduleKind::interleaved;

}  // namespace

// Makespans: (m + PP - 1)(F + B + W), GPipe and 1F1B alike (Narayanan et al. 2021, section 2.2).
TEST_CASE("gpipe and 1f1b have the known makespans and peaks") {
  const StageTimes times = stage(1, 1, 1);
  CHECK(makespan(shape_of(gpipe, 4, 8), times) == 33);
  CHECK(makespan(shape_of(gpipe, 8, 16), times) == 69);
  CHECK(held(run(shape_of(gpipe, 4, 8), times)) == std::vector<int>{8, 8, 8, 8});
  CHECK(makespan(shape_of(one_f_one_b, 4, 8), times) == 33);
  CHECK(makespan(shape_of(one_f_one_b, 8, 16), times) == 69);
  CHECK(makespan(shape_of(one_f_one_b, 4, 16), times) == 57);
  CHECK(makespan(shape_of(one_f_one_b, 4, 8), stage(2, 2, 2)) == 66);
  CHECK(makespan(shape_of(one_f_one_b, 4, 8), stage(4, 4, 4)) == 132);
  CHECK(held(run(shape_of(one_f_one_b, 4, 8), times)) == std::vector<int>{4, 3, 2, 1});
  // Fewer micro-batches than ranks: min(m, PP - r).
  CHECK(held(run(shape_of(one_f_one_b, 4, 2), times)) == std::vector<int>{2, 2, 2, 1});
}

TEST_CASE("the bubble of gpipe and 1f1b is (PP - 1)(F + B + W), interleaved that over v") {
  for (const auto& [forward, input, weight] :
       {std::tuple(1, 1, 1), std::tuple(2, 3, 1), std::tuple(5, 7, 4)}) {
    const StageTimes times = stage(forward, input, weight);
    const int whole = forward + input + weight;
    CHECK(idle(run(shape_of(gpipe, 4, 8), times)) == same(4, 3 * whole));
    CHECK(idle(run(shape_of(one_f_one_b, 8, 16), times)) == same(8, 7 * whole));
    // A chunk takes 1 / v of a stage: (PP - 1)(F + B + W) in times per chunk.
    CHECK(idle(run(shape_of(interleaved, 4, 8, 2), times)) == same(4, 3 * whole));
    CHECK(idle(run(shape_of(interleaved, 4, 8, 4), times)) == same(4, 3 * whole));
  }
}

TEST_CASE("interleaved schedules have the known makespans and peaks") {
  const StageTimes times = stage(1, 1, 1);
  const ScheduleRun two = run(shape_of(interleaved, 4, 8, 2), times);
  CHECK(two.makespan.count == 57);
  CHECK(held(two) == std::vector<int>{11, 9, 7, 5});
  const ScheduleRun four = run(shape_of(interleaved, 4, 8, 4), times);
  CHECK(four.makespan.count == 105);
  CHECK(held(four) == std::vector<int>{19, 17, 15, 13});
  CHECK(makespan(shape_of(interleaved, 8, 16, 2), times) == 117);
  CHECK(makespan(shape_of(interleaved, 2, 4, 2), times) == 27);
  CHECK(makespan(shape_of(interleaved, 4, 16, 2), times) == 105);
  CHECK(makespan(shape_of(interleaved, 4, 4, 2), times) == 33);
  ScheduleShape groups = shape_of(interleaved, 4, 8, 2);
  groups.group = 8;
  CHECK(makespan(groups, times) == 57);
  CHECK(held(run(groups, times)) == std::vector<int>{15, 13, 11, 9});
}

TEST_CASE("pairs of forward and backward passes hide what they overlap") {
  const StageTimes times = stage(1, 1, 1);
  const ScheduleShape shape = overlapped(shape_of(interleaved, 4, 8, 2));
  CHECK(makespan(shape, times, 3) == 57);
  CHECK(held(run(shape, times, 3)) == std::vector<int>{12, 10, 8, 6});
  // In halves of a unit: t_FB 2.5 gives 51.5.
  const StageTimes halves = stage(2, 2, 2);
  CHECK(makespan(shape, halves, 5) == 103);
  const ScheduleShape larger = overlapped(shape_of(interleaved, 8, 16, 2));
  CHECK(makespan(larger, times, 3) == 117);
  CHECK(makespan(larger, halves, 5) == 211);
}

TEST_CASE("expert overlap takes the time of its formula") {
  // (m v + PP - 1)(F + B) - (m v - (v - 1) PP - 1)(F + B - t_FB), B the whole backward pass.
  for (const auto& [ranks, micro_batches, chunks] :
       {std::tuple(2, 8, 2), std::tuple(4, 8, 3), std::tuple(4, 12, 4)}) {
    for (const int pair : {7, 8, 9, 10}) {
      const int passes = micro_batches * chunks;
      const int expected =
          (passes + ranks - 1) * 10 - (passes - (chunks - 1) * ranks - 1) * (10 - pair);
      CHECK(makespan(overlapped(shape_of(interleaved, ranks, micro_batches, chunks)),
                     stage(3, 4, 3), pair) == expected);
    }
  }
  // PP 1: F + (m - 1) t_FB + B.
  CHECK(makespan(overlapped(shape_of(one_f_one_b, 1, 6)), stage(3, 4, 3), 8) == 3 + 5 * 8 + 7);
}

TEST_CASE("zb-h1 has the known makespans, peaks and bubble") {
  const ScheduleShape shape = shape_of(ScheduleKind::zb_h1, 4, 8);
  const ScheduleShape larger = shape_of(ScheduleKind::zb_h1, 8, 16);
  CHECK(makespan(shape, stage(1, 1, 1)) == 27);
  CHECK(makespan(shape, stage(2, 2, 1)) == 49);
  CHECK(makespan(larger, stage(1, 1, 1)) == 55);
  CHECK(makespan(larger, stage(2, 2, 1)) == 101);
  CHECK(held_until_weights(run(shape, stage(1, 1, 1))) == std::vector<int>{4, 4, 4, 4});
  CHECK(held_until_weights(run(shape, stage(2, 2, 1))) == std::vector<int>{4, 4, 4, 4});
  CHECK(held(run(shape, stage(2, 2, 1))) == std::vector<int>{4, 3, 2, 1});
  // (PP - 1)(F + B - W)
  CHECK(idle(run(shape, stage(1, 1, 1))) == same(4, 3));
  CHECK(idle(run(shape, stage(2, 2, 1))) == same(4, 9));
  CHECK(idle(run(larger, stage(2, 2, 1))) == same(8, 21));
}

TEST_CASE("zb-h2 reaches the lower bound") {
  for (const auto& [ranks, micro_batches] : {std::pair(4, 8), std::pair(8, 16)}) {
    const ScheduleShape shape = shape_of(ScheduleKind::zb_h2, ranks, micro_batches);
    const auto limit = static_cast<std::size_t>(ranks);
    CHECK(held_until_weights(run(shape, stage(1, 1, 1))) == std::vector<int>(limit, 2 * ranks - 1));
    CHECK(held_until_weights(run(shape, stage(2, 2, 1))) == std::vector<int>(limit, 2 * ranks - 1));
    // m (F + B + W) + (PP - 1) F
    CHECK(makespan(shape, stage(1, 1, 1)) == 3 * micro_batches + ranks - 1);
    CHECK(makespan(shape, stage(2, 2, 1)) == 5 * micro_batches + 2 * (ranks - 1));
  }
  CHECK(makespan(shape_of(ScheduleKind::zb_h2, 4, 8), stage(1, 1, 1)) == 27);
  CHECK(makespan(shape_of(ScheduleKind::zb_h2, 4, 8), stage(2, 2, 1)) == 46);
  CHECK(makespan(shape_of(ScheduleKind::zb_h2, 8, 16), stage(1, 1, 1)) == 55);
  CHECK(makespan(shape_of(ScheduleKind::zb_h2, 8, 16), stage(2, 2, 1)) == 94);
  // From the first operation of rank 0 to its last, (PP - 1)(F + B - 2 W) are idle.
  const auto between = [](const ScheduleRun& run) {
    const RankRun& first = run.ranks.front();
    return (first.spans.back().end - first.spans.front().start - first.busy).count;
  };
  CHECK(between(run(shape_of(ScheduleKind::zb_h2, 4, 8), stage(1, 1, 1))) == 0);
  CHECK(between(run(shape_of(ScheduleKind::zb_h2, 4, 8), stage(2, 2, 1))) == 6);
  CHECK(between(run(shape_of(ScheduleKind::zb_h2, 8, 16), stage(2, 2, 1))) == 14);
}

TEST_CASE("dualpipe has the known makespans, peaks and bubble") {
  const ScheduleShape shape = shape_of(ScheduleKind::dualpipe, 4, 8);
  const ScheduleShape larger = shape_of(ScheduleKind::dualpipe, 8, 16);
  CHECK(makespan(shape, stage(1, 1, 1), 3) == 26);
  CHECK(makespan(shape, stage(2, 2, 1), 5) == 45);
  CHECK(makespan(shape, stage(2, 2, 1), 4) == 41);
  CHECK(makespan(larger, stage(1, 1, 1), 3) == 54);
  CHECK(makespan(larger, stage(2, 2, 1), 5) == 95);
  CHECK(makespan(larger, stage(2, 2, 1), 4) == 85);
  CHECK(held(run(shape, stage(2, 2, 1), 5)) == std::vector<int>{5, 5, 5, 5});
  CHECK(held(run(larger, stage(2, 2, 1), 5)) == std::vector<int>(8, 9));  // PP + 1
  // (PP / 2 - 1)(FB + B_full - 3 W), DeepSeek-V3 report, table 2.
  CHECK(idle(run(shape, stage(1, 1, 1), 3)) == same(4, 3 + 2 - 3));
  CHECK(idle(run(shape, stage(2, 2, 1), 5)) == same(4, 5 + 3 - 3));
  CHECK(idle(run(shape, stage(2, 2, 1), 4)) == same(4, 4 + 3 - 3));
  CHECK(idle(run(larger, stage(1, 1, 1), 3)) == same(8, 3 * 2));
  CHECK(idle(run(larger, stage(2, 2, 1), 5)) == same(8, 3 * 5));
  // 10 to 12 where the formula says 12: the outer ranks have more to overlap.
  CHECK(idle(run(larger, stage(2, 2, 1), 4)) ==
        std::vector<std::int64_t>{10, 11, 12, 12, 12, 12, 11, 10});
}

TEST_CASE("dualpipe-v is dualpipe on half of the ranks") {
  const ScheduleShape shape = shape_of(ScheduleKind::dualpipe_v, 2, 4);
  const ScheduleShape larger = shape_of(ScheduleKind::dualpipe_v, 4, 8);
  CHECK(shape.stages() == 4);
  CHECK(makespan(shape, stage(1, 1, 1), 3) == 26);
  CHECK(makespan(shape, stage(2, 2, 1), 5) == 45);
  CHECK(makespan(shape, stage(2, 2, 1), 4) == 41);
  CHECK(makespan(larger, stage(1, 1, 1), 3) == 54);
  CHECK(makespan(larger, stage(2, 2, 1), 5) == 95);
  CHECK(makespan(larger, stage(2, 2, 1), 4) == 85);
  CHECK(held(run(shape, stage(2, 2, 1), 4)) == std::vector<int>{5, 5});  // 2 PP + 1
  CHECK(held(run(larger, stage(2, 2, 1), 4)) == std::vector<int>{9, 9, 9, 9});
}

TEST_CASE("unequal stages cost more than their sum") {
  const auto unequal = [](const std::vector<int>& forward) {
    PipelineTimes times;
    for (const int time : forward) times.stages.push_back(stage(time, time, time));  // tB = 2 tF
    return run_schedule(make_schedule(shape_of(one_f_one_b, 4, 8)), times).makespan.count;
  };
  CHECK(unequal({2, 2, 2, 2}) == 66);
  CHECK(unequal({2, 2, 2, 3}) == 90);
  CHECK(unequal({3, 2, 2, 2}) == 81);
  CHECK(unequal({2, 3, 2, 2}) == 84);
}

TEST_CASE("every micro-batch takes its own time in every stage") {
  // 1f1b, two ranks and micro-batches, F 1 and B 2: rank 0 F0 F1 B0 B1, rank 1 F0 B0 F1 B1.
  ScheduleShape shape;
  shape.ranks = shape.micro_batches = 2;
  const Schedule schedule = make_schedule(shape);
  const auto makespan = [&](int slow_micro, int slow_stage) {
    const OperationTime time = [&](const PipelineOperation& operation) {
      const bool slow = operation.pass == ChunkPass{slow_micro, slow_stage};
      return Picoseconds((operation.kind == OperationKind::forward ? 1 : 2) * (slow ? 2 : 1));
    };
    return run_schedule(schedule, time, {Picoseconds(0)}, false).makespan.count;
  };
  CHECK(makespan(-1, -1) == 9);
  CHECK(makespan(1, 1) == 12);  // rank 1: 1-2, 2-4, 4-6, 6-10; rank 0: B1 10-12
  CHECK(makespan(0, 1) == 12);  // rank 1: 1-3, 3-7, 7-8, 8-10; rank 0: B1 10-12
  CHECK(makespan(1, 0) == 11);  // rank 1: 1-2, 2-4, 4-5, 5-7; rank 0: B1 7-11
  CHECK(makespan(0, 0) == 11);  // rank 1: 2-3, 3-5, 5-6, 6-8; rank 0: B0 5-9, B1 9-11
}

TEST_CASE("sends between stages delay a pipeline more than once") {
  CHECK(makespan(shape_of(one_f_one_b, 4, 8), stage(10, 10, 10)) == 330);
  CHECK(makespan(shape_of(one_f_one_b, 4, 8), stage(10, 10, 10), 0, 1) == 346);
  CHECK(makespan(shape_of(interleaved, 4, 8, 2), stage(10, 10, 10)) == 570);
  CHECK(makespan(shape_of(interleaved, 4, 8, 2), stage(10, 10, 10), 0, 1) == 584);
}

TEST_CASE("every boundary has its own time") {
  const Schedule schedule = make_schedule(shape_of(one_f_one_b, 3, 2));
  const OperationTime time = [](const PipelineOperation& operation) {
    return Picoseconds(operation.kind == OperationKind::forward ? 10 : 20);
  };
  const std::vector<Picoseconds> p2p = {Picoseconds(1), Picoseconds(3)};
  // Rank 0: F0 0-10, F1 10-20; rank 1: F0 11-21, F1 21-31; rank 2: F0 24-34, B0 34-54, F1 54-64,
  // B1 64-84; rank 1: B0 57-77, B1 87-107; rank 0: B0 78-98, B1 108-128.
  CHECK(run_schedule(schedule, time, p2p, false).makespan.count == 128);
  // Rank 0: F0 0-10, F1 11-21; rank 1: F0 11-21, F1 24-34; rank 2: F0 24-34, B0 34-54, F1 57-67,
  // B1 67-87; rank 1: B0 57-77, B1 90-110; rank 0: B1 111-131.
  const ScheduleRun run = run_schedule(schedule, time, p2p, true);
  CHECK(run.ranks[1].spans[1].start.count == 24);
  CHECK(run.makespan.count == 131);
}

TEST_CASE("a send that occupies its rank delays its next operation") {
  PipelineTimes times;
  times.stages.assign(2, stage(10, 10, 10));
  times.p2p = Picoseconds(1);
  const Schedule schedule = make_schedule(shape_of(one_f_one_b, 2, 2));
  // Rank 0: F0 0-10, F1 10-20; rank 1: F0 11-21, B0 21-41, F1 41-51, B1 51-71; rank 0: B1 72-92.
  CHECK(run_schedule(schedule, times).makespan.count == 92);
  times.p2p_occupies_rank = true;
  // Rank 1 sends the gradient of B0 from 41 to 42 before its F1, 42-52.
  const ScheduleRun run = run_schedule(schedule, times);
  CHECK(run.makespan.count == 93);
  CHECK(run.ranks[0].spans[1].start.count == 11);
}

namespace {

// A pass of a stage that a schedule must contain once.
using Pass = std::tuple<OperationKind, int, int>;

void check_complete(const Schedule& schedule) {
  std::multiset<Pass> seen;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (const PipelineOperation& operation : schedule.ranks[rank]) {
      const auto note = [&](OperationKind kind, const moesim::parallel::ChunkPass& pass) {
        seen.insert({kind, pass.micro_batch, pass.stage});
        CHECK(schedule.shape.rank_of(pass.stage, pass.micro_batch) == static_cast<int>(rank));
      };
      if (operation.is_forward()) note(OperationKind::forward, operation.pass);
      if (operation.is_backward()) note(OperationKind::input_gradient, operation.backward_pass());
      if (operation.has_weight_gradient()) {
        note(OperationKind::weight_gradient, operation.backward_pass());
      }
    }
  }
  const std::set<Pass> once(seen.begin(), seen.end());
  CHECK(once.size() == seen.size());
  CHECK(seen.size() ==
        static_cast<std::size_t>(3 * schedule.shape.stages() * schedule.shape.micro_batches));
}

}  // namespace

TEST_CASE("every schedule computes each pass of each stage once, on its rank") {
  for (const auto& name : schedule_names) {
    for (const int ranks : {1, 2, 4, 6}) {
      for (const int micro_batches : {1, 2, 4, 7, 8, 12, 26}) {
        for (const int chunks : {1, 2, 3}) {
          for (const bool overlap : {false, true}) {
            ScheduleShape shape = shape_of(name.value, ranks, micro_batches, chunks);
            shape.expert_overlap = overlap;
            if (schedule_refusal(shape)) continue;
            CAPTURE(name.name, ranks, micro_batches, chunks, overlap);
            const Schedule schedule = make_schedule(shape);
            check_complete(schedule);
            const ScheduleRun ran = run(shape, stage(3, 4, 2));
            // No rank computes faster than its work, and the first micro-batch passes all stages.
            const int per_rank = micro_batches * shape.stages() / ranks * 9;
            CHECK(ran.makespan.count >= per_rank);
            for (const RankRun& rank : ran.ranks) {
              CHECK(rank.busy.count == per_rank);
              CHECK((rank.busy + rank.idle).count == ran.makespan.count);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a schedule that cannot be is refused with its reason") {
  const auto refusal = [](const ScheduleShape& shape) {
    return schedule_refusal(shape).value_or("none");
  };
  CHECK_THAT(refusal(shape_of(ScheduleKind::dualpipe, 3, 8)), ContainsSubstring("3 is odd"));
  CHECK_THAT(refusal(shape_of(ScheduleKind::dualpipe, 4, 9)), ContainsSubstring("9 are odd"));
  CHECK_THAT(refusal(shape_of(ScheduleKind::dualpipe, 4, 6)), ContainsSubstring("8 micro-batches"));
  CHECK_THAT(refusal(shape_of(ScheduleKind::dualpipe_v, 4, 7)), ContainsSubstring("not 7"));
  CHECK_THAT(refusal(shape_of(one_f_one_b, 4, 8, 2)), ContainsSubstring("choose interleaved"));
  CHECK_THAT(refusal(shape_of(interleaved, 4, 8)), ContainsSubstring("choose 1f1b"));
  // Groups of 4: 10 leave 2, fewer than ranks; 12 and, with groups of 5, 9 (a last group of 4) fit.
  CHECK_THAT(refusal(shape_of(interleaved, 4, 10, 2)), ContainsSubstring("a last group of 2"));
  CHECK_THAT(refusal(shape_of(interleaved, 4, 3, 2)), ContainsSubstring("parallel 4, not 3"));
  CHECK(refusal(shape_of(interleaved, 4, 12, 2)) == "none");
  ScheduleShape five = shape_of(interleaved, 4, 9, 2);
  five.group = 5;
  CHECK(refusal(five) == "none");
  five.group = 3;
  CHECK_THAT(refusal(five), ContainsSubstring("--micro-batch-group 3"));
  CHECK_THAT(refusal(overlapped(shape_of(gpipe, 4, 8))), ContainsSubstring("not in gpipe"));
  CHECK_THAT(refusal(overlapped(shape_of(one_f_one_b, 4, 8))),
             ContainsSubstring("--virtual-pipeline is above 1"));
  CHECK_THAT(refusal(shape_of(gpipe, 4, 0)), ContainsSubstring("0 micro-batches"));
  CHECK_THROWS_AS(make_schedule(shape_of(ScheduleKind::dualpipe, 3, 8)), moesim::UsageError);
}

TEST_CASE("ranks that wait for each other are an error") {
  Schedule schedule = make_schedule(shape_of(one_f_one_b, 2, 2));
  std::swap(schedule.ranks[1][0], schedule.ranks[1][1]);  // backward before forward
  PipelineTimes times;
  times.stages.assign(2, stage(1, 1, 1));
  CHECK_THROWS_WITH(run_schedule(schedule, times),
                    ContainsSubstring("rank 0 waits for ever at its operation 3 of 4"));
}

TEST_CASE("a large schedule runs in time linear in its operations") {
  const ScheduleShape shape = shape_of(interleaved, 16, 512, 8);
  const ScheduleRun large = run(shape, stage(1, 1, 1));
  CHECK(large.ranks[0].spans.size() == 2 * 512 * 8);
  // (m v + PP - 1)(F + B + W)
  CHECK(large.makespan.count == (512 * 8 + 15) * 3);
}
