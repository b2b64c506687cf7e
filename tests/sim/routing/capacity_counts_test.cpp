// Capacities of routers that choose by groups or a bias: counts against tokens.
#include <cmath>

#include "sim/routing/counts/count_router.hpp"
#include "sim/routing/jobs/fidelity.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/simulation/layer_router.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/count_distance.hpp"

using namespace moesim;
using namespace moesim::routing;

namespace {

RouterConfig with_capacity(const std::string& name, int top_k, const char* factor,
                           Priority priority) {
  RouterConfig router = parse_router(name, top_k);
  router.drops = true;
  router.capacity_convention = CapacityConvention::library;
  router.capacity_factor = Decimal::parse(factor, "factor");
  router.priority = priority;
  return router;
}

RoutingJob job_of(const RouterConfig& router) {
  RoutingJob job;
  job.router = router;
  job.scores = parse_score_source("gaussian:0.2", "scores");
  job.experts = 32;
  job.gpus = job.expert_parallel = 8;
  job.tokens_per_gpu = 512;
  job.layers = 1;
  return job;
}

}  // namespace

TEST_CASE("counts of a capacity behind groups or a bias are as far from tokens as the bars allow",
          "[slow]") {
  std::vector<RouterConfig> routers;
  for (const char* factor : {"0.75", "1", "1.25"}) {
    for (const Priority priority :
         {Priority::own_weight, Priority::token_order, Priority::token_max, Priority::position}) {
      routers.push_back(with_capacity("bias-balanced+groups:8:4", 8, factor, priority));
    }
    routers.push_back(with_capacity("bias-balanced", 6, factor, Priority::own_weight));
    routers.push_back(with_capacity("group-limited:8:3", 6, factor, Priority::own_score));
    routers.push_back(with_capacity("topk", 8, factor, Priority::own_weight));
    routers.back().score_function = ScoreFunction::sigmoid;
  }
  const DistanceShape shape{"gaussian:0.2", 64, 16, 16, 1024, 16};
  const std::vector<Distance> found = count_distances(shape, routers);
  CHECK(found.size() == routers.size());  // none is refused
  for (const Distance& distance : found) {
    for (const Distance::Metric& metric : distance.metrics) {
      INFO(distance.router << ": " << metric.name << " of " << metric.tokens << " is off by "
                           << metric.off << " +- " << metric.error);
      CHECK(std::abs(metric.off) <= metric.bar + 3 * metric.error);
    }
  }
}

TEST_CASE("counts of jobs that differ in capacity alone are of the same choices") {
  std::vector<RoutingJob> jobs;
  for (const char* factor : {"0.75", "1", "8"}) {
    jobs.push_back(job_of(
        with_capacity("bias-balanced:0.001:300+groups:4:2", 4, factor, Priority::own_weight)));
  }
  std::vector<LayerRouting> together(jobs.size());
  CountRouter().route(jobs, 0, 0, together);
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    LayerRouting alone;
    CountRouter().route({&jobs[job], 1}, 0, 0, {&alone, 1});
    CHECK(alone.kept_rows == together[job].kept_rows);
    CHECK(alone.loss.residual_loss == together[job].loss.residual_loss);
    CHECK(together[job].demand == together.front().demand);
    CHECK(together[job].loss.not_chosen == together.front().loss.not_chosen);
  }
  CHECK(together[2].loss.failed == 0);
  CHECK(together[2].loss.residual_loss == together[2].loss.not_chosen);
  CHECK(together[0].loss.residual_loss > together[1].loss.residual_loss);
}

TEST_CASE("counts refuse a capacity of the group behind groups, and what is rectified") {
  RoutingJob job = job_of(with_capacity("group-limited:4:2", 4, "1", Priority::own_weight));
  CHECK(counts_refusal(job).empty());
  job.router.capacity_scope = CapacityScope::group;
  CHECK(counts_refusal(job).find("of the group drops is not worked out") != std::string::npos);
  job.router = with_capacity("topk+ir", 4, "1", Priority::own_weight);
  job.router.score_function = ScoreFunction::sigmoid;
  CHECK(counts_refusal(job).find("that are rectified") != std::string::npos);
}
