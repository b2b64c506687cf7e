#include "sim/routing/simulation/popular_load.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::routing;

namespace {

RoutingJob job_of(const char* scores, int top_k) {
  RoutingJob job;
  job.router = parse_router("dropless", 1);
  job.router.top_k = top_k;
  job.scores = parse_score_source(scores, "--routing");
  job.experts = 16;
  job.gpus = 8;
  job.expert_parallel = 8;
  job.tokens_per_gpu = 20'000;
  job.layers = 3;
  return job;
}

// Rows of the busiest rank over the mean, mean over layers, of routed tokens.
double routed_load(const RoutingJob& job, int replica) {
  double sum = 0;
  const std::size_t local = static_cast<std::size_t>(job.experts / job.expert_parallel);
  for (const LayerRouting& layer : simulate_routing(job, replica).layers) {
    std::vector<double> rows(static_cast<std::size_t>(job.expert_parallel));
    double all = 0;
    for (std::size_t cell = 0; cell < layer.kept_rows.size(); ++cell) {
      const std::size_t expert = cell % static_cast<std::size_t>(job.experts);
      rows[expert / local] += layer.kept_rows[cell];
      all += layer.kept_rows[cell];
    }
    sum += *std::max_element(rows.begin(), rows.end()) / all * job.expert_parallel / job.layers;
  }
  return sum;
}

double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const double n = static_cast<double>(a.size());
  const double mean_a = std::accumulate(a.begin(), a.end(), 0.0) / n;
  const double mean_b = std::accumulate(b.begin(), b.end(), 0.0) / n;
  double ab = 0;
  double aa = 0;
  double bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean_a) * (b[i] - mean_b);
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
  }
  return ab / std::sqrt(aa * bb);
}

}  // namespace

TEST_CASE("the load by popularity is that of routed tokens") {
  constexpr int replicas = 4;
  for (const int top_k : {1, 2, 4}) {
    for (const char* scores : {"dirichlet:0.5", "zipf:1", "gaussian:1", "unknown"}) {
      // Gumbel noise and k = 1 choose by popularity exactly; the others have normal noise.
      const bool gumbel = scores == std::string("dirichlet:0.5") || scores == std::string("zipf:1");
      const bool exact = top_k == 1 && gumbel;
      const double distance = exact ? 0.02 : top_k == 1 ? 0.06 : 0.045;
      const RoutingJob job = job_of(scores, top_k);
      const std::vector<double> loads = popular_loads(job, 2, replicas);
      REQUIRE(loads.size() == replicas);
      for (int replica = 0; replica < replicas; ++replica) {
        CAPTURE(scores, top_k, replica);
        CHECK(loads[static_cast<std::size_t>(replica)] ==
              Approx(routed_load(job, replica + 2)).epsilon(distance));
      }
      CHECK(popular_loads(job, 3, 1).front() == loads[1]);
    }
  }
}

TEST_CASE("the load by popularity follows that of routed tokens") {
  constexpr int replicas = 12;
  for (const int top_k : {1, 2, 4}) {
    for (const char* scores : {"dirichlet:0.5", "gaussian:1", "unknown"}) {
      const RoutingJob job = job_of(scores, top_k);
      const std::vector<double> loads = popular_loads(job, 0, replicas);
      std::vector<double> routed(replicas);
      for (int replica = 0; replica < replicas; ++replica)
        routed[static_cast<std::size_t>(replica)] = routed_load(job, replica);
      CAPTURE(scores, top_k);
      CHECK(correlation(loads, routed) > 0.99);
    }
  }
}

TEST_CASE("recorded and fixed popularities have no further draws") {
  CHECK(popular_loads(job_of("balanced", 1), 0, 4).empty());
  RoutingJob alone = job_of("dirichlet:0.5", 1);
  alone.expert_parallel = 1;
  CHECK(popular_loads(alone, 0, 4).empty());
}
