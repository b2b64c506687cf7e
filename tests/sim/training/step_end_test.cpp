#include "sim/training/step/step_end.hpp"

#include <numeric>

#include "sim/training/step/training_step.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/training_job.hpp"

using namespace moesim;
using namespace moesim::training;

TEST_CASE("gradients that are shared are reduced in every micro-batch") {
  TrainingJob twice = qwen_on_h100(16, 1, 8, 128);
  const double once = part(training_step(twice), Part::gradients);
  twice.states.zero = 2;
  CHECK(part(training_step(twice), Part::gradients) == Approx(8 * once));
  // DualPipe: each of a rank's two stages sees one half of its 32 micro-batches.
  twice = qwen_on_h100(64, 4, 8, 512);
  twice.layout.schedule = parallel::ScheduleKind::dualpipe;
  twice.overlaps_gradients = false;
  const double both = part(training_step(twice), Part::gradients);
  twice.states.zero = 2;
  CHECK(part(training_step(twice), Part::gradients) == Approx(16 * both));
}

TEST_CASE("shared weights are gathered twice and reduced in every micro-batch") {
  TrainingJob shared = qwen_on_h100(32, 1, 8, 32 * 4);
  shared.overlaps_gradients = shared.overlaps_parameters = false;
  const TrainingStep once = training_step(shared);
  shared.states.zero = 3;
  const TrainingStep each = training_step(shared);
  // Four micro-batches; messages are layers instead of buckets of 40 M.
  CHECK(part(each, Part::parameters) / part(once, Part::parameters) == Approx(2 * 4).epsilon(0.2));
  CHECK(part(each, Part::gradients) / part(once, Part::gradients) == Approx(4).epsilon(0.2));
  CHECK(each.peak_memory() < once.peak_memory());
  CHECK(std::accumulate(each.parts.begin(), each.parts.end(), 0.0) == Approx(each.step_us));
  // A quarter of the computation beside them hides them, where they overlap.
  shared.overlaps_gradients = shared.overlaps_parameters = true;
  const TrainingStep hidden = training_step(shared);
  CHECK(hidden.step_us < each.step_us);
  CHECK(hidden.step_us > each.step_us - 0.26 * part(each, Part::experts) -
                             0.26 * part(each, Part::attention) - 0.26 * part(each, Part::head) -
                             0.26 * part(each, Part::router) - 0.26 * part(each, Part::dispatch) -
                             0.26 * part(each, Part::combine) - 1);
}

TEST_CASE("instances gather inside a node and reduce across once per step") {
  TrainingJob inside = qwen_on_h100(32, 1, 1, 32 * 4);
  inside.model = std::make_shared<const model::Model>(model::Model::load("olmoe-1b-7b"));
  inside.states.zero = 3;
  const TrainingStep all = training_step(inside);
  inside.states.optimizer_instances = 4;  // 8 ranks share: one node
  const TrainingStep hybrid = training_step(inside);
  CHECK(part(hybrid, Part::parameters) < part(all, Part::parameters));
  CHECK(hybrid.step_us < all.step_us);
  CHECK(hybrid.peak_memory() > all.peak_memory());
}

TEST_CASE("without replicas there is nothing to share") {
  TrainingJob alone = qwen_on_h100(8, 1, 8, 64);
  alone.layout.layout.context = 1;
  alone.layout.layout.tensor = 8;
  const TrainingStep once = training_step(alone);
  alone.states.zero = 3;
  CHECK(training_step(alone).step_us == Approx(once.step_us));
}

TEST_CASE("a step ends when the last rank's reductions and the longest optimizer have") {
  // Reductions lie behind each rank's own last pass, not behind the pipeline's.
  parallel::ScheduleRun run;
  run.makespan = Picoseconds::from_us(100);
  run.ranks.resize(2);
  run.ranks[0].spans = {{Picoseconds(0), Picoseconds::from_us(100)}};
  run.ranks[1].spans = {{Picoseconds(0), Picoseconds::from_us(70)}};
  std::vector<RankEnd> ends(2);
  const auto of = [](RankEnd& end, Part part) -> double& {
    return end.parts[static_cast<std::size_t>(part)];
  };
  of(ends[0], Part::gradients) = 5;
  of(ends[0], Part::optimizer) = 20;
  of(ends[1], Part::gradients) = 50;
  of(ends[1], Part::optimizer) = 8;
  const auto gradients = static_cast<std::size_t>(Part::gradients);
  CHECK(joint_end(run, ends)[gradients] == Approx(20));  // 70 + 50 - 100
  CHECK(sum(joint_end(run, ends)) == Approx(40));        // both optimizers run at once
  of(ends[1], Part::gradients) = 10;
  CHECK(joint_end(run, ends)[gradients] == Approx(5));
}
