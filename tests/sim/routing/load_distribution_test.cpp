#include "sim/routing/simulation/load_distribution.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/base/statistics.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/simulation/popular_load.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::routing;

namespace {

RoutingJob job_of(const char* scores, int experts, int ranks, int top_k = 1) {
  RoutingJob job;
  job.router = parse_router("dropless", 1);
  job.router.top_k = top_k;
  job.scores = parse_score_source(scores, "--routing");
  job.experts = experts;
  job.gpus = ranks;
  job.expert_parallel = ranks;
  job.tokens_per_gpu = 64;
  job.layers = 8;
  return job;
}

double deviation(const std::vector<double>& values) {
  const double middle = mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - middle) * (value - middle);
  return std::sqrt(squares / static_cast<double>(values.size()));
}

}  // namespace

TEST_CASE("the distribution of loads is that of many replicas") {
  constexpr int replicas = 4000;
  struct Case {
    const char* scores;
    int experts;
    int ranks;
    int top_k = 1;
  };
  for (const Case& of :
       {Case{"gaussian:1", 8, 8}, Case{"gaussian:1", 64, 16}, Case{"gaussian:0.1", 8, 4},
        Case{"dirichlet:0.5", 8, 8}, Case{"dirichlet:0.5", 32, 8}, Case{"zipf:1", 16, 4},
        Case{"unknown:0.25", 16, 8}, Case{"burst:4:0.25", 8, 8}, Case{"gaussian:1", 64, 16, 6},
        Case{"dirichlet:0.5", 32, 8, 2}, Case{"unknown", 16, 8, 4},
        Case{"burst:4:0.25", 8, 4, 2}}) {
    const RoutingJob job = job_of(of.scores, of.experts, of.ranks, of.top_k);
    const std::vector<double> drawn = popular_loads(job, 0, replicas);
    const std::vector<double> found = load_distribution(job);
    REQUIRE(found.size() == 64);
    CHECK(std::is_sorted(found.begin(), found.end()));
    const double spread = deviation(drawn);
    CAPTURE(of.scores, of.experts, of.top_k, mean(drawn), mean(found), spread, deviation(found));
    // 4,000 replicas show the mean to 1.6 % of the deviation, and the deviation to as much or, of
    // skewed loads, twice; the distribution is as good as some 1,000.
    CHECK(std::abs(mean(found) - mean(drawn)) < 0.1 * spread);
    CHECK(deviation(found) == Approx(spread).epsilon(0.12));
  }
}

// The larger an exponent of shares, the surer the same k experts are chosen by all: each of them
// has a rank of its own.
TEST_CASE("where shares are far apart as many ranks as there are choices take all") {
  for (const int k : {1, 2}) {
    for (const char* scores : {"dirichlet:0.01", "dirichlet:1e-6"}) {
      CAPTURE(scores, k);
      const std::vector<double> found = load_distribution(job_of(scores, 8, 8, k));
      const double most = 8.0 / k;
      // busiest_load() finds the threshold of k choices to 1e-4 of k.
      CHECK(found.front() <= most * (1 + 1e-4));
      CHECK(found.back() == Approx(most).epsilon(1e-4));
      // The k-th share is at least some e^20 times the next one in nearly all draws.
      CHECK(mean(found) > (scores[10] == '1' ? 0.999 : 0.9) * most);
    }
  }
}

TEST_CASE("the distribution of loads does not depend on the seed, and is only of drawn sources") {
  RoutingJob job = job_of("gaussian:1", 8, 8);
  const std::vector<double> found = load_distribution(job);
  job.seed = 7;
  CHECK(load_distribution(job) == found);
  job.router.top_k = 2;
  CHECK(load_distribution(job) != found);
  CHECK(load_distribution(job_of("balanced", 8, 8)).empty());
  CHECK(load_distribution(job_of("gaussian:1", 8, 1)).empty());
}
