// Biases that are trained on another popularity than the one that is routed.
#include "sim/routing/groups/bias_training.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "sim/routing/rules/expert_bias.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/small_routing.hpp"

using namespace moesim;
using namespace moesim::routing;
using test::small_job;

namespace {

constexpr const char* router = "bias-balanced:0.001:1000";

RoutingJob job_of(const std::string& routed, Fidelity fidelity = Fidelity::tokens,
                  const char* name = router) {
  RoutingJob job = small_job(name, 2);
  job.scores = parse_score_source(routed, "--routing");
  job.fidelity = fidelity;
  return job;
}

RoutingJob trained_on(const std::string& scores, RoutingJob job) {
  const auto source =
      std::make_shared<const ScoreSource>(parse_score_source(scores, "--expert-bias"));
  job.router.expert_bias = std::make_shared<const ExpertBias>(ExpertBias::trained(
      "trained:" + scores, source, std::hash<std::string>()(scores_key(*source)), job.experts));
  return job;
}

RoutingJob with_zeros(RoutingJob job) {
  job.router.expert_bias = std::make_shared<const ExpertBias>(ExpertBias::zeros(job.experts));
  return job;
}

// [layer, expert]
std::vector<std::vector<std::int64_t>> demands(const RoutingJob& job) {
  std::vector<std::vector<std::int64_t>> found;
  for (const LayerRouting& layer : simulate_routing(job, 0).layers) found.push_back(layer.demand);
  return found;
}

double busiest_over_mean(const std::vector<std::int64_t>& demand) {
  const auto sum = std::accumulate(demand.begin(), demand.end(), std::int64_t{0});
  return static_cast<double>(*std::max_element(demand.begin(), demand.end())) *
         static_cast<double>(demand.size()) / static_cast<double>(sum);
}

}  // namespace

TEST_CASE("trained by name on what is routed is trained on it") {
  for (const Fidelity fidelity : {Fidelity::tokens, Fidelity::counts}) {
    const RoutingJob job = job_of("gaussian:0.3", fidelity);
    const ReplicaRouting usual = simulate_routing(job, 1);
    const ReplicaRouting named = simulate_routing(trained_on("gaussian:0.3", job), 1);
    CHECK(named.loss.residual_loss == usual.loss.residual_loss);
    for (std::size_t layer = 0; layer < usual.layers.size(); ++layer) {
      CHECK(named.layers[layer].kept_rows == usual.layers[layer].kept_rows);
    }
  }
}

TEST_CASE("no steps of training, or any on experts that are alike, leave biases of zero") {
  const RoutingJob untrained = job_of("gaussian:0.3", Fidelity::tokens, "bias-balanced:0.001:0");
  CHECK(demands(trained_on("zipf:1", untrained)) == demands(with_zeros(untrained)));
  // Biases of alike experts differ by some steps of 0.001, and sigmoids of standard normals have a
  // density of 1.6 at their quartile: loads of 1/4 move by 0.006 for each 0.004.
  const RoutingJob job = job_of("gaussian:0.3");
  const auto expected = demands(with_zeros(job));
  const auto found = demands(trained_on("gaussian:0", job));
  double apart = 0;
  for (std::size_t layer = 0; layer < found.size(); ++layer) {
    for (std::size_t expert = 0; expert < found[layer].size(); ++expert) {
      apart = std::max(apart, std::abs(static_cast<double>(found[layer][expert]) /
                                           static_cast<double>(expected[layer][expert]) -
                                       1));
    }
  }
  CHECK(apart < 0.08);
  CHECK(busiest_over_mean(expected[0]) > 1.2);  // which training on itself would even out
}

TEST_CASE("what was popular in training is asked for least where all are alike") {
  const auto popular = demands(with_zeros(job_of("gaussian:0.3")));
  const auto found = demands(trained_on("gaussian:0.3", job_of("gaussian:0")));
  for (std::size_t layer = 0; layer < found.size(); ++layer) {
    const auto hot = std::max_element(popular[layer].begin(), popular[layer].end());
    const auto cold = std::min_element(found[layer].begin(), found[layer].end());
    CHECK(hot - popular[layer].begin() == cold - found[layer].begin());
    CHECK(busiest_over_mean(found[layer]) > 1.2);
  }
}

TEST_CASE("counts of biases that were trained elsewhere are those of tokens") {
  for (const char* routed : {"gaussian:0", "gaussian:1"}) {
    const auto tokens = demands(trained_on("gaussian:0.5", job_of(routed)));
    const auto counts = demands(trained_on("gaussian:0.5", job_of(routed, Fidelity::counts)));
    // Each a sum of 8,192 tokens; shares of counts have an error of 1 % beside.
    constexpr double draws = 8192;
    for (std::size_t layer = 0; layer < tokens.size(); ++layer) {
      for (std::size_t expert = 0; expert < tokens[layer].size(); ++expert) {
        const auto demand = static_cast<double>(tokens[layer][expert]);
        const double error = std::sqrt(2 * demand * (1 - demand / draws)) + 0.01 * demand;
        INFO(routed << ", layer " << layer << ", expert " << expert);
        CHECK(static_cast<double>(counts[layer][expert]) == Approx(demand).margin(4 * error));
      }
    }
  }
}

TEST_CASE("keys tell trainings apart, and share the logits") {
  const RoutingJob job = job_of("gaussian:0.3");
  CHECK(trained_on("zipf:1", job).key() != job.key());
  CHECK(trained_on("zipf:1", job).key() != trained_on("zipf:0.5", job).key());
  CHECK(trained_on("zipf:1", job).logits_key() == job.logits_key());
}
