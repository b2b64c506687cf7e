// Counts of the bias-balanced router against its tokens.
#include <cmath>

#include "sim/routing/jobs/fidelity.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/count_distance.hpp"

using namespace moesim;
using namespace moesim::routing;

namespace {

void check_distance(const DistanceShape& shape, const std::string& router, int top_k) {
  const std::vector<Distance> found = count_distances(shape, {parse_router(router, top_k)});
  REQUIRE(found.size() == 1);
  CHECK(found.front().metrics.size() >= 4);
  for (const Distance::Metric& metric : found.front().metrics) {
    INFO(shape.name() << ", " << router << ": " << metric.name << " of " << metric.tokens
                      << " is off by " << metric.off << " +- " << metric.error);
    CHECK(std::abs(metric.off) <= metric.bar + 3 * metric.error);
  }
}

}  // namespace

TEST_CASE("counts of biased choices are as far from tokens as the bars allow", "[slow]") {
  // Trained until only the steps move the biases: alone, in groups, with a popularity far from
  // equal; and after too few steps.
  check_distance({"gaussian:0.1", 64, 16, 16, 1024, 24}, "bias-balanced:0.001:1000", 6);
  check_distance({"gaussian:0.1", 256, 32, 32, 512, 12}, "bias-balanced:0.001:1000+groups:8:4", 8);
  check_distance({"gaussian:0.5", 64, 16, 16, 1024, 24}, "bias-balanced:0.001:1000+groups:8:4", 8);
  check_distance({"zipf:0.6", 64, 16, 16, 1024, 24}, "bias-balanced:0.002:600", 4);
  check_distance({"gaussian:0.1", 64, 16, 16, 1024, 24}, "bias-balanced:0.001:40", 4);
  // Popularities so far apart that saturated sigmoids make the slopes of experts differ.
  check_distance({"gaussian:1", 64, 16, 16, 1024, 24}, "bias-balanced:0.001:1000+groups:8:4", 8);
  check_distance({"gaussian:2", 8, 16, 8, 1024, 24}, "bias-balanced:0.001:1000", 2);
  // The first guess of the biases is worst for few experts, one of them hot.
  check_distance({"hot-expert:8", 8, 16, 8, 1024, 24}, "bias-balanced:0.001:1000", 2);
}
