#include "sim/routing/rules/expert_placement.hpp"

#include <memory>

#include "sim/base/error.hpp"
#include "sim/routing/groups/logits_file.hpp"
#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/scores/logit_source.hpp"
#include "sim/routing/simulation/imbalance.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::routing;

namespace {

using Layer = std::vector<std::uint16_t>;

std::shared_ptr<const ExpertPlacement> placement_of(std::vector<Layer> layers) {
  return std::make_shared<const ExpertPlacement>(std::move(layers), "the test");
}

RoutingJob job_of(const std::string& router, const std::string& scores) {
  RoutingJob job;
  job.router = parse_router(router, 0, 2);
  job.scores = parse_score_source(scores, "--routing");
  job.experts = 8;
  job.gpus = 8;
  job.expert_parallel = 4;
  job.gpus_per_domain = 2;
  job.tokens_per_gpu = 512;
  job.layers = 2;
  return job;
}

}  // namespace

TEST_CASE("a placement is a permutation in every layer, and knows its inverse") {
  const ExpertPlacement placement({{2, 0, 1}, {0, 1, 2}}, "the test");
  CHECK(placement.experts() == 3);
  CHECK(placement.expert_at(2) == Layer{2, 0, 1});  // layers start again
  CHECK(placement.position_of(0) == Layer{1, 2, 0});
  std::vector<int> rows{10, 11, 12, 20, 21, 22};
  put_in_placement(placement.expert_at(0), rows);
  CHECK(rows == std::vector<int>{12, 10, 11, 22, 20, 21});
  put_in_placement(placement.position_of(0), rows);
  CHECK(rows == std::vector<int>{10, 11, 12, 20, 21, 22});
  CHECK(placement.digest() != ExpertPlacement({{2, 0, 1}}, "the test").digest());
  CHECK_THROWS_WITH(placement_of({{0, 0, 1}}), ContainsSubstring("expert 0 twice"));
  CHECK_THROWS_WITH(placement_of({{0, 3, 1}}), ContainsSubstring("the test: layer 0"));
  CHECK_THROWS_WITH(placement_of({{0, 1, 2}, {1, 0}}), ContainsSubstring("layer 1 has 2 experts"));
  CHECK_THROWS_AS(placement_of({}), UsageError);
}

TEST_CASE("a placement that moves nothing changes nothing, but is told apart") {
  for (const char* router : {"top2+fr+ir@node", "dropless", "expert-choice", "scomoe:0.3:0.3"}) {
    RoutingJob job = job_of(router, "zipf:0.8");
    const std::string key = job.key();
    const ReplicaRouting plain = simulate_routing(job, 0);
    job.expert_placement = placement_of({{0, 1, 2, 3, 4, 5, 6, 7}});
    const ReplicaRouting ordered = simulate_routing(job, 0);
    CHECK(job.key() != key);
    for (std::size_t layer = 0; layer < 2; ++layer) {
      CHECK(ordered.layers[layer].kept_rows == plain.layers[layer].kept_rows);
      CHECK(ordered.layers[layer].ir_rows == plain.layers[layer].ir_rows);
    }
  }
}

TEST_CASE("among experts of equal logit the lower number goes first wherever they lie") {
  const auto placement = placement_of({{3, 2, 1, 0}});
  GroupOfFile group;
  group.ranks = 2;
  group.tokens = 2;
  group.experts = 4;
  group.logits = {1, 1, 1, 0, /**/ 0, 2, 2, 2, /**/ 0, 0, 0, 0, /**/ 1, 0, 1, 0};
  for (const char* name : {"top2", "top2+fr", "dropless"}) {
    const RouterConfig router = parse_router(name, 0, 2);
    const RoutedGroup plain = route_logits(router, group);
    const RoutedGroup placed = route_logits(router, group, {}, placement);
    CHECK(placed.routes() == plain.routes());
    CHECK(placed.kept_rows == plain.kept_rows);
  }
}

TEST_CASE("popularities move with their experts") {
  const auto placement = placement_of({{7, 6, 5, 4, 3, 2, 1, 0}, {0, 2, 4, 6, 1, 3, 5, 7}});
  for (const char* scores : {"gaussian:1", "zipf:1", "dirichlet:0.5", "hot-rank:4"}) {
    const ScoreSource source = parse_score_source(scores, "--routing");
    for (std::uint32_t layer = 0; layer < 2; ++layer) {
      std::vector<float> offsets = LogitSource(source, {8, 4, 8}, 3, 1, layer).offsets();
      put_in_placement(placement->expert_at(static_cast<int>(layer)), offsets);
      CHECK(LogitSource(source, {8, 4, 8, placement.get()}, 3, 1, layer).offsets() == offsets);
    }
  }
}

TEST_CASE("dealt out, the experts of a hot GPU load all alike") {
  // hot-rank:4 makes two neighbours of eight experts hot: one GPU of four is asked for 4 / 7 of the
  // routes, 2.3 times the mean. In turn they lie on two GPUs: (4 + 1) / 14 each, 1.4 times.
  RoutingJob job = job_of("top1", "hot-rank:4");
  job.router.capacity_factor = Decimal(8);
  const auto busiest = [&] {
    double sum = 0;
    for (const LayerRouting& layer : simulate_routing(job, 0).layers) {
      sum += layer_imbalance(job, layer).gpus.busiest_over_mean / 2;
    }
    return sum;
  };
  // A GPU has 2,048 tokens of its group on average: four standard errors of a share are 8 %.
  CHECK(busiest() == Approx(4.0 / 7 * 4).epsilon(0.08));
  job.expert_placement = placement_of({{0, 4, 1, 5, 2, 6, 3, 7}});
  CHECK(busiest() == Approx(5.0 / 14 * 4).epsilon(0.08));
  job.fidelity = Fidelity::counts;
  CHECK(busiest() == Approx(5.0 / 14 * 4).epsilon(0.08));
}

TEST_CASE("placements are refused where positions mean nothing, or something else") {
  const auto refused = [](const char* router, const char* text) {
    RoutingJob job = job_of(router, "gaussian:0.1");
    job.expert_placement = placement_of({{0, 4, 1, 5, 2, 6, 3, 7}});
    CHECK_THROWS_WITH(check(job), ContainsSubstring(text));
  };
  refused("hash", "scores no experts");
  refused("random", "scores no experts");
  refused("soft", "scores no experts");
  refused("group-limited:4:2", "neighbouring experts");
  refused("bias-balanced+groups:4:2", "neighbouring experts");
  RoutingJob job = job_of("top2", "gaussian:0.1");
  job.expert_placement = placement_of({{1, 0}});
  CHECK_THROWS_WITH(check(job), ContainsSubstring("places 2 experts, the job has 8"));
}
