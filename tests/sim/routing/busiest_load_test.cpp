#include "sim/routing/simulation/busiest_load.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/support/catch.hpp"

using namespace moesim::routing;

namespace {

// By the exact probabilities of every choice.
double exact_load(const std::vector<float>& offsets, Noise noise, int ranks, int k) {
  const std::vector<double> shares = choice_shares(offsets, noise, k);
  const std::size_t local = offsets.size() / static_cast<std::size_t>(ranks);
  std::vector<double> of_rank(static_cast<std::size_t>(ranks));
  for (std::size_t cell = 0; cell < shares.size(); ++cell) {
    of_rank[cell % offsets.size() / local] += shares[cell];
  }
  return *std::max_element(of_rank.begin(), of_rank.end()) * ranks / k;
}

}  // namespace

TEST_CASE("the busiest load is close to that of exact choices") {
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  for (const Noise noise : {Noise::normal, Noise::gumbel}) {
    for (const int k : {1, 2, 6}) {
      for (const float spread : {0.1F, 0.5F, 1.0F, 2.0F}) {
        for (const int experts : {16, 64}) {
          std::vector<float> offsets(static_cast<std::size_t>(experts));
          for (float& offset : offsets) offset = spread * normal(random);
          const double exact = exact_load(offsets, noise, 8, k);
          CAPTURE(static_cast<int>(noise), k, spread, experts);
          const double bound = k > 1 ? 0.04 : noise == Noise::normal ? 0.09 : 1e-6;
          CHECK(busiest_load(offsets, noise, 8, k) == Approx(exact).epsilon(bound));
        }
      }
    }
  }
}

TEST_CASE("the busiest load of extreme offsets") {
  CHECK(busiest_load(std::vector<float>(8, -1.0F), Noise::normal, 4, 2) == Approx(1));
  CHECK(busiest_load(std::vector<float>{0, 9, 0, 0}, Noise::normal, 4, 4) == 1);
  // One expert takes every first choice, the others share the second.
  const std::vector<float> hot{0, 200, 0, 0};
  CHECK(busiest_load(hot, Noise::gumbel, 4, 1) == Approx(4));
  CHECK(busiest_load(hot, Noise::gumbel, 4, 2) == Approx(2).epsilon(0.001));
  // Fewer experts than k can ever be chosen.
  constexpr float none = -std::numeric_limits<float>::infinity();
  CHECK(busiest_load(std::vector<float>{0, none, none, none}, Noise::normal, 2, 2) == Approx(2));
}
