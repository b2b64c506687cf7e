#include "sim/training/job/expert_copies.hpp"

#include <algorithm>
#include <numeric>

#include "sim/routing/routers/router_name.hpp"
#include "sim/training/drawn/drawn_loads.hpp"
#include "sim/training/step/training_step.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::training;

TEST_CASE("copies go to the expert with most rows per copy, and to the rank with fewest") {
  // By hand: 90 -> 45 45, then 60 -> 30 30; copies 45 45 40 30 30 10 on 2 ranks of 3 slots:
  // 45 | 45, 40 | 30, then the second has fewest: 30 there, the last slot is the first's.
  const std::vector<double> rows = {90, 40, 60, 10};
  const ExpertCopies copies(rows, 2, 2);
  CHECK(copies.copies() == std::vector<int>{2, 1, 2, 1});
  CHECK(copies.rows_of_ranks(rows) == std::vector<double>{45 + 40 + 10, 45 + 30 + 30});
  // Measured on other tokens, the copies stay where they are.
  CHECK(copies.rows_of_ranks(std::vector<double>{100, 0, 0, 0}) == std::vector<double>{50, 50});
}

TEST_CASE("without copies experts are packed by load") {
  const ExpertCopies packed(std::vector<double>{4, 3, 2, 1}, 2, 0);
  CHECK(packed.rows_of_ranks(std::vector<double>{4, 3, 2, 1}) == std::vector<double>{5, 5});
}

namespace {

TrainingJob skewed(int redundant) {
  TrainingJob made;
  made.profile = std::make_shared<const profile::Profile>(profile::Profile::load("h100-sxm"));
  made.cluster = std::make_shared<const cluster::Cluster>(cluster::Cluster::load("hgx-h100"));
  made.model = std::make_shared<const model::Model>(model::Model::load("qwen3-30b-a3b"));
  made.layout.sizes.gpus = 16;
  made.layout.sizes.expert = 8;
  made.layout.sequence_length = 4096;
  made.layout.global_batch = 64;
  made.redundant_experts = redundant;
  DrawnRouting drawn;
  drawn.router = routing::parse_router("dropless", 0, 8);
  drawn.router.drops = false;
  drawn.scores = routing::parse_score_source("gaussian:0.5", "test");
  made.routing = drawn;
  return made;
}

double part_us(const TrainingStep& step, TrainingPart part) {
  return step.parts[static_cast<std::size_t>(part)];
}

}  // namespace

TEST_CASE("copies of hot experts level the busiest rank, and take memory") {
  const TrainingStep none = training_step(skewed(0));
  const TrainingStep few = training_step(skewed(8));
  const TrainingStep many = training_step(skewed(32));
  CHECK(few.routing->mean_load < none.routing->mean_load);
  // Down to the chance of single draws, about 1.01 here, for tokens other than those that placed
  // the copies.
  CHECK(few.routing->mean_load < 1.05);
  CHECK(many.routing->mean_load < 1.02);
  CHECK(many.routing->mean_load > 1);
  CHECK(many.memory.front().weights > few.memory.front().weights);
  CHECK(many.memory.front().gradients > few.memory.front().gradients);
  // Gradients go to the copied expert, which alone has states, is stepped and shared.
  CHECK(many.memory.front().optimizer == none.memory.front().optimizer);
  // Their gradients are cleared as all are: 4 bytes of each, where states take 25 per parameter.
  CHECK(part_us(many, TrainingPart::optimizer) > 1.02 * part_us(none, TrainingPart::optimizer));
  CHECK(part_us(many, TrainingPart::optimizer) < 1.05 * part_us(none, TrainingPart::optimizer));
  CHECK(part_us(many, TrainingPart::gradients) > part_us(none, TrainingPart::gradients));
  CHECK(few.routing->loss.failed == 0);
}

TEST_CASE("a rank that shares weights exchanges its share of the copies") {
  const auto exchanged_us = [](int zero) {
    TrainingJob job = skewed(8);
    job.states.zero = zero;
    const TrainingStep step = training_step(job);
    double last_us = 0;  // buckets of gradients come first
    for (const BucketExchange& each : step.ends.front().exchanges) {
      if (each.part == TrainingPart::gradients) last_us = each.each_us;
    }
    return last_us;
  };
  // EDP 2: half of what a rank exchanges that has them whole, but for the latency.
  CHECK(exchanged_us(3) < 0.55 * exchanged_us(1));
  CHECK(exchanged_us(3) > 0.5 * exchanged_us(1));
  // Half of the gradients, 4 bytes each, and all of the weights, 2 bytes.
  CHECK(exchanged_us(2) == Approx(4 / 6.0 * exchanged_us(1)).epsilon(0.02));
}

TEST_CASE("where replicas share gradients those of copies are reduced in every micro-batch") {
  const auto exposed_us = [](int redundant) {
    TrainingJob job = skewed(redundant);
    job.states.zero = 2;
    job.overlaps_gradients = false;
    return part_us(training_step(job), TrainingPart::gradients);
  };
  // 128 copies: twice the experts.
  CHECK(exposed_us(128) > 1.7 * exposed_us(0));
}
