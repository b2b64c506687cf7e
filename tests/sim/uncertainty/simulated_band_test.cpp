#include "sim/uncertainty/simulated_band.hpp"

#include <cmath>
#include <random>
#include <vector>

#include "sim/base/statistics.hpp"
#include "tests/support/catch.hpp"

namespace moesim::uncertainty {
namespace {

SoftwareError known(double mean, double deviation) {
  SoftwareError error;
  error.mean = mean;
  error.deviation = deviation;
  error.name = "software";
  return error;
}

constexpr double z = 1.6448536269514722;

}  // namespace

TEST_CASE("one draw: a log-normal band with the variances of its terms added") {
  // 70 % products, 10 % memory, 20 % through NICs: 0.035, 0.01 and 0.04; noise 0.02; one draw shows
  // nothing of the curves' 0.05. Their squares sum to 0.0058250: 0.076322.
  const std::vector<StepDraw> draws = {{100, {0.7, 0.1, 0, 0.2}}};
  const SimulatedBand band = simulated_band(draws, known(0.3, 0.4));
  CHECK(band.same_p05_ms == Approx(100 * std::exp(-z * 0.0763217)).epsilon(1e-5));
  CHECK(band.same_p95_ms == Approx(100 * std::exp(z * 0.0763217)).epsilon(1e-5));
  const double whole = std::hypot(0.0763217, 0.4);
  CHECK(band.p05_ms == Approx(100 * std::exp(0.3 - z * whole)).epsilon(1e-5));
  CHECK(band.p50_ms == Approx(100 * std::exp(0.3)).epsilon(1e-9));
  CHECK(band.p95_ms == Approx(100 * std::exp(0.3 + z * whole)).epsilon(1e-5));
  CHECK(band.terms.front().name == "software");
}

TEST_CASE("a shared error is not divided by the number of draws") {
  // The same step in every draw: as wide with 64 draws as the terms say, but for the curves'
  // errors, which 64 draws show.
  const std::vector<StepDraw> many(64, {100, {1, 0, 0, 0}});
  const SimulatedBand band = simulated_band(many, known(0, 0));
  const double expected = std::sqrt(0.05 * 0.05 + 0.02 * 0.02 + 0.0025 * unseen_variance(64));
  CHECK(std::log(band.p95_ms / 100) == Approx(z * expected).epsilon(1e-6));
  CHECK(unseen_variance(1) == Approx(1));
  CHECK(unseen_variance(64) < 0.02);
}

TEST_CASE("quantiles of the mixture are those of drawing from it") {
  std::vector<StepDraw> draws;
  for (int draw = 0; draw < 8; ++draw) {
    draws.push_back({100.0 * (1 + 0.05 * draw), {0.5, 0.1 * draw / 8, 0.2, 0.2}});
  }
  const SoftwareError error = known(0.1, 0.15);
  std::mt19937_64 generator(7);
  std::normal_distribution<double> normal;
  std::vector<double> drawn;
  for (int round = 0; round < 200'000; ++round) {
    const StepDraw& draw = draws[static_cast<std::size_t>(round) % draws.size()];
    double log_step = std::log(draw.step_ms) + error.mean + error.deviation * normal(generator) +
                      run_noise * normal(generator) +
                      0.05 * std::sqrt(unseen_variance(draws.size())) * normal(generator);
    for (std::size_t work = 0; work < work_class_count; ++work) {
      log_step += draw.shares[work] * systematic_error(static_cast<WorkClass>(work), false) *
                  normal(generator);
    }
    drawn.push_back(std::exp(log_step));
  }
  const SimulatedBand band = simulated_band(draws, error);
  CHECK(band.p05_ms == Approx(quantile(drawn, 0.05)).epsilon(0.005));
  CHECK(band.p50_ms == Approx(quantile(drawn, 0.50)).epsilon(0.005));
  CHECK(band.p95_ms == Approx(quantile(drawn, 0.95)).epsilon(0.005));
}

TEST_CASE("machine and software cancel in a ratio, and so do classes of equal share") {
  const std::vector<StepDraw> first(16, {90, {0.8, 0.1, 0.1, 0}});
  const std::vector<StepDraw> second(16, {100, {0.8, 0.1, 0.1, 0}});
  const SoftwareError wide = known(0.5, 0.8);
  const RatioBand ratio = ratio_band(first, second, wide);
  const double noise = std::sqrt(2 * run_noise * run_noise + 2 * 0.0025 * unseen_variance(16));
  CHECK(ratio.p50 == Approx(std::log(0.9)).epsilon(1e-9));
  CHECK(ratio.p95 - ratio.p50 == Approx(z * noise).epsilon(1e-6));
  CHECK(ratio.p50 - ratio.p05 == Approx(z * noise).epsilon(1e-6));
  // Other shares: 10 % more of the step through NICs adds 0.02.
  const std::vector<StepDraw> crossing(16, {100, {0.7, 0.1, 0.1, 0.1}});
  const RatioBand other = ratio_band(first, crossing, wide);
  CHECK(other.p95 - other.p50 ==
        Approx(z * std::sqrt(noise * noise + 0.02 * 0.02 + 0.005 * 0.005)).epsilon(1e-6));
  // The second's error is the first's turned round.
  const RatioBand back = ratio_band(second, first, wide);
  CHECK(back.p05 == Approx(-ratio.p95).epsilon(1e-9));
}

TEST_CASE("replicas of one seed are compared one by one") {
  // Draws that go up and down together: their ratio is the same in each.
  std::vector<StepDraw> slow, fast;
  for (const double routing : {0.8, 0.9, 1.0, 1.1, 1.3}) {
    slow.push_back({200 * routing, {1, 0, 0, 0}});
    fast.push_back({100 * routing, {1, 0, 0, 0}});
  }
  const RatioBand ratio = ratio_band(slow, fast, known(0, 0.5));
  const RatioBand alone = ratio_band({slow[2]}, {fast[2]}, known(0, 0.5));
  CHECK(ratio.p50 == Approx(std::log(2)));
  CHECK(ratio.p95 - ratio.p05 < alone.p95 - alone.p05);  // more draws show more of the curves
}

}  // namespace moesim::uncertainty
