#include "sim/routing/scores/counted_popularity.hpp"

#include <cmath>
#include <vector>

#include "sim/routing/scores/race.hpp"
#include "sim/routing/tokens/choice_shares.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::routing;

TEST_CASE("offsets of counts load experts as these do", "[routing]") {
  // From a hundredth of the mean to four times it; one expert of more than 1 / k of all; equal
  // ones.
  const std::vector<std::vector<double>> tables = {
      {400, 200, 150, 100, 80, 40, 20, 9, 1, 100, 100, 100},
      {5000, 10, 20, 30, 40, 50},
      {7, 7, 7, 7, 7},
  };
  for (const std::vector<double>& counts : tables) {
    for (const int k : {1, 2, 4}) {
      const std::vector<double> found = counted_offsets(counts, k);
      const std::vector<float> offsets(found.begin(), found.end());
      const std::vector<double> wanted = capped_inclusions(counts, k);
      const std::vector<double> shares = choice_shares(offsets, Noise::normal, k);
      for (std::size_t expert = 0; expert < counts.size(); ++expert) {
        double chosen = 0;
        for (int choice = 0; choice < k; ++choice) {
          chosen += shares[static_cast<std::size_t>(choice) * counts.size() + expert];
        }
        CHECK(chosen == Approx(wanted[expert]).margin(3e-5));
      }
    }
  }
}

TEST_CASE("experts without counts are never chosen, as many as choices alike", "[routing]") {
  const std::vector<double> offsets = counted_offsets(std::vector<double>{3, 0, 9}, 2);
  CHECK(offsets == std::vector<double>{0, -INFINITY, 0});
}
