#include "sim/routing/scores/race.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::routing;

namespace {

// Over all ordered pairs: first e, then f among the rest (Plackett and Luce).
std::vector<double> pairs_by_hand(const std::vector<double>& weights) {
  const double whole = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> inclusion(weights.size(), 0.0);
  for (std::size_t first = 0; first < weights.size(); ++first) {
    for (std::size_t second = 0; second < weights.size(); ++second) {
      if (first == second) continue;
      const double probability =
          weights[first] / whole * weights[second] / (whole - weights[first]);
      inclusion[first] += probability;
      inclusion[second] += probability;
    }
  }
  return inclusion;
}

std::vector<double> logs(const std::vector<double>& values) {
  std::vector<double> result;
  for (const double value : values) result.push_back(std::log(value));
  return result;
}

std::vector<double> skewed(std::size_t experts) {
  std::vector<double> shares;
  for (std::size_t place = 0; place < experts; ++place) {
    shares.push_back(std::pow(static_cast<double>(place + 1), -1.2));
  }
  const double whole = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= whole;
  return shares;
}

}  // namespace

TEST_CASE("the inclusion probabilities of a race of two are those of drawing in turn") {
  const std::vector<double> weights{5, 2, 1, 0.5, 0.01};
  const std::vector<double> expected = pairs_by_hand(weights);
  const std::vector<double> found = race_inclusions(logs(weights), 2);
  for (std::size_t expert = 0; expert < weights.size(); ++expert) {
    CHECK(std::abs(found[expert] - expected[expert]) < 1e-6);
  }
}

TEST_CASE("inclusion probabilities sum to k, and are k / E where all are alike") {
  for (const int k : {1, 2, 5, 8}) {
    const std::vector<double> found = race_inclusions(logs(skewed(24)), k);
    CHECK(std::accumulate(found.begin(), found.end(), 0.0) == Approx(k).epsilon(1e-6));
    const std::vector<double> alike = race_inclusions(std::vector<double>(24, 3.0), k);
    for (const double inclusion : alike) CHECK(inclusion == Approx(k / 24.0).epsilon(1e-6));
  }
}

TEST_CASE("log-weights give back the shares they were made for") {
  for (const int k : {1, 2, 4, 8}) {
    for (const std::size_t experts : {9UL, 16UL, 64UL}) {
      const std::vector<double> wanted = capped_inclusions(skewed(experts), k);
      CHECK(std::accumulate(wanted.begin(), wanted.end(), 0.0) == Approx(k));
      CHECK(*std::max_element(wanted.begin(), wanted.end()) <= 0.999);
      const std::vector<double> found = race_inclusions(race_log_weights(skewed(experts), k), k);
      for (std::size_t expert = 0; expert < experts; ++expert) {
        INFO("k " << k << ", " << experts << " experts, expert " << expert);
        CHECK(std::abs(found[expert] - wanted[expert]) < 1e-4);
      }
    }
  }
}

TEST_CASE("what is beyond one route per token goes to the other experts") {
  // 2 * 0.8 is capped at 0.999; the rest of 2, 1.001, is dealt 3 to 1.
  const std::vector<double> capped = capped_inclusions(std::vector<double>{0.8, 0.15, 0.05}, 2);
  CHECK(capped[0] == Approx(0.999));
  CHECK(capped[1] == Approx(1.001 * 0.75));
  CHECK(capped[2] == Approx(1.001 * 0.25));
}

TEST_CASE("as many experts as choices are all chosen") {
  const std::vector<double> weights = race_log_weights(std::vector<double>{0.7, 0.2, 0.1}, 3);
  CHECK(weights == std::vector<double>{0, 0, 0});
}

// To inclusions that are disturbed by 20 %, every second expert up and the others down.
double worst_miss(const std::vector<double>& shares, int k, bool by_shares) {
  const Race race(shares, k);
  std::vector<double> disturbed = race.inclusions;
  for (std::size_t expert = 0; expert < disturbed.size(); ++expert) {
    disturbed[expert] *= expert % 2 == 0 ? 1.2 : 1 / 1.2;
  }
  const std::vector<double> wanted = capped_inclusions(disturbed, k);
  std::vector<double> moved = race.moved_to(wanted);
  for (std::size_t expert = 0; by_shares && expert < moved.size(); ++expert) {
    moved[expert] = race.log_weights[expert] + std::log(wanted[expert] / race.inclusions[expert]);
  }
  const std::vector<double> found = race_inclusions(moved, k);
  double worst = 0;
  for (std::size_t expert = 0; expert < found.size(); ++expert) {
    worst = std::max(worst, std::abs(found[expert] / wanted[expert] - 1));
  }
  return worst;
}

TEST_CASE("a race is moved to inclusions nearby, better than by the shares alone") {
  CHECK(worst_miss(skewed(32), 1, false) < 1e-6);
  for (const int k : {2, 4, 8}) {
    std::vector<double> shares = skewed(64);
    for (double& share : shares) share = std::sqrt(share);
    CHECK(worst_miss(shares, k, false) < 0.02);
    CHECK(worst_miss(shares, k, false) < 0.3 * worst_miss(shares, k, true));
  }
}
