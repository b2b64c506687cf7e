#include "sim/routing/scores/unknown_popularity.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/routing/scores/score_source.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::routing;

namespace {

// log SIGMA of each replica, mean of `layers`.
std::vector<double> trainings(double unbalanced, std::uint64_t seed, std::uint32_t replicas,
                              std::uint32_t layers) {
  std::vector<double> means;
  for (std::uint32_t replica = 0; replica < replicas; ++replica) {
    double sum = 0;
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      sum += std::log(drawn_spread(unbalanced, seed, replica, layer));
    }
    means.push_back(sum / layers);
  }
  return means;
}

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double deviation_of(const std::vector<double>& values) {
  double squares = 0;
  for (const double value : values) squares += std::pow(value - mean_of(values), 2);
  return std::sqrt(squares / static_cast<double>(values.size()));
}

}  // namespace

TEST_CASE("spreads of unknown popularity have the median and deviations that are stated") {
  for (const std::uint64_t seed : {1, 2, 3}) {
    const std::vector<double> means = trainings(0, seed, 64, 200);
    CHECK(std::exp(mean_of(means)) == Approx(balanced_spreads.median).epsilon(0.03));
    CHECK(deviation_of(means) == Approx(balanced_spreads.trainings).epsilon(0.06));
    std::vector<double> layers;
    for (std::uint32_t layer = 0; layer < 2000; ++layer) {
      layers.push_back(std::log(drawn_spread(0, seed, 5, layer)));
    }
    CHECK(deviation_of(layers) == Approx(balanced_spreads.layers).epsilon(0.06));
  }
  CHECK(std::exp(mean_of(trainings(1, 1, 64, 200))) ==
        Approx(unbalanced_spreads.median).epsilon(0.03));
}

TEST_CASE("a few replicas show the population of trainings, whatever the seed") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::vector<double> means = trainings(0, seed, 16, 400);
    std::sort(means.begin(), means.end());
    const double middle = (means[7] + means[8]) / 2;
    CHECK(std::abs(middle - std::log(balanced_spreads.median)) < 0.1);
    CHECK(means[15] - means[0] > 3 * balanced_spreads.trainings);
  }
}

TEST_CASE("a share of the replicas is of trainings without a balance loss") {
  const double border = std::log(std::sqrt(balanced_spreads.median * unbalanced_spreads.median));
  for (const double share : {0.0, 0.25, 1.0}) {
    const std::vector<double> means = trainings(share, 7, 400, 60);
    const auto above =
        std::count_if(means.begin(), means.end(), [&](double mean) { return mean > border; });
    CHECK(static_cast<double>(above) / 400 == Approx(share).margin(0.04));
  }
}

TEST_CASE("unknown popularity is a source with an optional share") {
  const auto parsed = [](const char* text) { return parse_score_source(text, "--routing"); };
  CHECK(parsed("unknown").share == 0);
  CHECK(parsed("unknown:0.2").share == 0.2);
  CHECK(parsed(parsed("unknown:0.2").name().c_str()).share == 0.2);
  CHECK(parsed(parsed("unknown").name().c_str()).kind == ScoreSource::Kind::unknown);
  CHECK_THROWS_WITH(parsed("unknown:1.5"), ContainsSubstring("share from 0 to 1"));
  CHECK_THROWS_WITH(parsed("unknown:"), ContainsSubstring("needs a value"));
}
