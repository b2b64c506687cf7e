#include "sim/routing/simulation/weight_range.hpp"

#include <cstdint>
#include <memory>
#include <vector>

#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::routing;

namespace {

// One group of two GPUs of 512 tokens, 8 experts of which the first have the most tokens.
RoutingJob counted_job(const char* router) {
  RoutingJob job;
  job.router = parse_router(router, 0);
  job.router.capacity_factor = Decimal::parse("2", "test");
  job.scores.kind = ScoreSource::Kind::counts;
  job.scores.popularity = std::make_shared<const CountedPopularity>(
      CountedPopularity::Layers{{.2, .2, .15, .1, .1, .1, .1, .05}});
  job.experts = 8;
  job.gpus = 2;
  job.expert_parallel = 2;
  job.tokens_per_gpu = 512;
  job.layers = 2;
  return job;
}

}  // namespace

TEST_CASE("logits that spread less give a token's experts equal weights", "[routing]") {
  const RoutingJob job = counted_job("top2");
  const TokenLoss loss = simulate_routing(job, 3).loss;
  REQUIRE(loss.residual_loss > 0.02);
  // The same tokens choose the same experts, and lose as many routes. A route of two equal ones is
  // half of its token's weight.
  const WeightRange range = weight_range(job, 3, 1e4);
  CHECK(range.of_smaller * loss.residual_loss == Approx(loss.failed).epsilon(2e-3));
  CHECK(range.of_larger < 1);
  // Less far, it is in between.
  const WeightRange near = weight_range(job, 3, 2);
  CHECK(near.of_smaller > 1);
  CHECK(near.of_smaller < range.of_smaller);
  CHECK(near.of_larger < 1);
  CHECK(near.of_larger > range.of_larger);
}

TEST_CASE("a rectified token keeps more where weights are alike", "[routing]") {
  // One expert on each GPU, which is seldom among a token's best: it weighs as much as these where
  // all weigh alike. Without rectification equal weights lose more.
  RoutingJob job = counted_job("top2+ir");
  job.gpus = job.expert_parallel = 8;
  const WeightRange range = weight_range(job, 0, 30);
  CHECK(range.of_smaller < 0.7);
}

TEST_CASE("the range is that of the experts where they are placed", "[routing]") {
  RoutingJob job = counted_job("top2+ir");
  const WeightRange first = weight_range(job, 0, 3);
  job.place(std::make_shared<const ExpertPlacement>(
      std::vector<std::vector<std::uint16_t>>{{0, 2, 4, 6, 1, 3, 5, 7}}, "test"));
  const TokenLoss loss = simulate_routing(job, 0).loss;
  CHECK(loss.residual_loss > 0);
  const WeightRange placed = weight_range(job, 0, 3);
  CHECK(placed.of_smaller != first.of_smaller);  // other experts are local
}

TEST_CASE("what loses nothing has no range", "[routing]") {
  RoutingJob job = counted_job("top2");
  job.router.capacity_factor = Decimal::parse("8", "test");
  const WeightRange range = weight_range(job, 0, 3);
  CHECK(range.of_larger == 1);
  CHECK(range.of_smaller == 1);
}
