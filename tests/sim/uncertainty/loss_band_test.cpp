#include "sim/uncertainty/bands/loss_band.hpp"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tests/support/catch.hpp"

namespace moesim::uncertainty {
namespace {

// The share of 20,000 bands of `replicas` draws that hold one further draw. Its standard error is
// 0.002 where the share is 0.9.
template <typename Draw>
double coverage(std::size_t replicas, Draw draw) {
  constexpr int bands = 20000;
  int inside = 0;
  for (int band = 0; band < bands; ++band) {
    std::vector<double> losses(replicas);
    for (double& loss : losses) loss = draw();
    const LossBand found = *loss_band(losses);
    const double further = draw();
    inside += found.p05 <= further && further <= found.p95 ? 1 : 0;
  }
  return static_cast<double>(inside) / bands;
}

}  // namespace

TEST_CASE("few replicas: Student's t of the angles") {
  // Angles 0.40, 0.41, 0.42, 0.43: mean 0.415, deviation 0.01 sqrt(5 / 3) = 0.0129099. Student's t
  // of 3 degrees reaches 2.353363 at 90 %; times sqrt(1 + 1 / 4) the ends are 0.0339677 away.
  std::vector<double> losses;
  for (const double angle : {0.40, 0.41, 0.42, 0.43})
    losses.push_back(std::pow(std::sin(angle), 2));
  const LossBand band = *loss_band(losses);
  CHECK(band.steps == 4);
  CHECK(band.p05 == Approx(std::pow(std::sin(0.415 - 0.0339677), 2)).epsilon(1e-6));
  CHECK(band.p95 == Approx(std::pow(std::sin(0.415 + 0.0339677), 2)).epsilon(1e-6));
}

TEST_CASE("the standard error is that of a mean") {
  // Deviation of 0.1, 0.2, 0.3: 0.1.
  CHECK(loss_band(std::vector<double>{0.1, 0.3, 0.2})->error == Approx(0.1 / std::sqrt(3.0)));
}

TEST_CASE("from 19 replicas on the ends are order statistics") {
  std::vector<double> losses;
  for (int replica = 1; replica <= 49; ++replica) losses.push_back(replica / 100.0);
  // 0.05 and 0.95 of 50 places: halfway between the second and the third, and their mirror images.
  const LossBand band = *loss_band(losses);
  CHECK(band.p05 == Approx(0.025));
  CHECK(band.p95 == Approx(0.475));
  losses.resize(order_statistics_from);
  CHECK(loss_band(losses)->p05 == Approx(0.01));
  CHECK(loss_band(losses)->p95 == Approx(0.19));
}

TEST_CASE("nothing is said of one replica, and equal losses have no width") {
  CHECK(!loss_band(std::vector<double>{0.2}));
  CHECK(!loss_band(std::vector<double>{}));
  const LossBand band = *loss_band(std::vector<double>{0.2, 0.2});
  CHECK(band.error == 0);
  CHECK(band.p05 == 0.2);
  CHECK(band.p95 == 0.2);
}

TEST_CASE("ends are shares, also of two replicas far apart") {
  const LossBand band = *loss_band(std::vector<double>{0.0, 0.9});
  CHECK(band.p05 == 0);
  CHECK(band.p95 == Approx(1));
}

TEST_CASE("a band holds nine of ten further steps", "[property]") {
  std::mt19937_64 generator(3);
  std::normal_distribution<double> normal;
  const auto even = [&] { return std::pow(std::sin(0.3 + 0.02 * normal(generator)), 2); };
  for (const std::size_t replicas : {2, 4, 16}) {
    CHECK(coverage(replicas, even) == Approx(0.9).margin(0.009));  // four standard errors
  }
  // Half of the steps lose nothing, the others up to 0.2: the order of many replicas does not mind.
  std::uniform_real_distribution<double> uniform(-0.2, 0.2);
  const auto skewed = [&] { return std::max(0.0, uniform(generator)); };
  CHECK(coverage(39, skewed) >= 0.9 - 0.009);
}

TEST_CASE("a reason of its own widens a band by the root of squares") {
  const LossBand band{4, 0.01, 0.17, 0.24};
  const LossBand wider = widened(band, 0.2, 0.04, 0.03);
  CHECK(wider.p05 == Approx(0.2 - 0.05));
  CHECK(wider.p95 == Approx(0.2 + 0.05));
  CHECK(wider.error == band.error);
  CHECK(wider.steps == 4);
  CHECK(widened(band, 0.2, 0.9, 0.9).p05 == 0);
  CHECK(widened(band, 0.2, 0.9, 0.9).p95 == 1);
}

}  // namespace moesim::uncertainty
