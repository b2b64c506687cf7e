#include "sim/uncertainty/bands/simulated_band.hpp"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "sim/base/random.hpp"
#include "sim/base/statistics.hpp"
#include "sim/uncertainty/bands/fitted_software.hpp"
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

TEST_CASE("errors of classes do not cancel between two machines") {
  const std::vector<StepDraw> first(16, {90, {0.6, 0.1, 0.1, 0.2}});
  const std::vector<StepDraw> second(16, {100, {0.6, 0.1, 0.1, 0.2}});
  SoftwareError software = known(0.5, 0.8);
  const double noise = std::sqrt(2 * run_noise * run_noise + 2 * 0.0025 * unseen_variance(16));
  const auto width = [&](const OtherMachine& other) {
    const RatioBand ratio = ratio_band(first, second, software, {}, {}, other);
    CHECK(ratio.p50 == Approx(std::log(0.9)).epsilon(1e-9));
    return (ratio.p95 - ratio.p50) / z;
  };
  CHECK(width({}) == Approx(noise).epsilon(1e-6));
  // Exchanges: 10 % at 5.5 % inside and 20 % at 20 % across, of either by itself.
  OtherMachine other{{false, false, true, true}, false, {}};
  const double inside = 0.1 * 0.055, across = 0.2 * 0.2;
  CHECK(width(other) ==
        Approx(std::sqrt(noise * noise + 2 * inside * inside + 2 * across * across)).epsilon(1e-6));
  // The second cluster has measurements of its own between its domains.
  other.has_measured_exchanges = true;
  const double measured = 0.2 * 0.055;
  CHECK(width(other) == Approx(std::sqrt(noise * noise + 2 * inside * inside + across * across +
                                         measured * measured))
                            .epsilon(1e-6));
  // What the first was fitted to is in its level; the second machine was not measured.
  software.fitted_shares = {0.6, 0.1, 0.1, 0.2};
  CHECK(width(other) ==
        Approx(std::sqrt(noise * noise + inside * inside + measured * measured)).epsilon(1e-6));
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

TEST_CASE("a ratio that follows the load has all loads, whichever were drawn") {
  std::vector<double> all_loads;
  for (int value = 0; value < 64; ++value) {
    all_loads.push_back(2 + normal_quantile((value + 0.5) / 64));
  }
  // The first step grows with the load, the second is padded.
  const auto band_of = [&](std::uint64_t seed, bool with_loads, bool turned) {
    std::mt19937_64 generator(seed);
    std::normal_distribution<double> load(2, 1);
    AveragedDraws averaged;
    averaged.all_loads = all_loads;
    std::vector<StepDraw> grows;
    for (int draw = 0; draw < 16; ++draw) {
      averaged.loads.push_back(load(generator));
      grows.push_back({100 * std::exp(0.1 * averaged.loads.back()), {1, 0, 0, 0}});
    }
    const std::vector<StepDraw> padded(16, {100, {1, 0, 0, 0}});
    if (!with_loads) averaged = {};
    return turned ? ratio_band(padded, grows, known(0, 0.5), {}, averaged)
                  : ratio_band(grows, padded, known(0, 0.5), averaged);
  };
  const double noise = 2 * run_noise * run_noise + 2 * 0.0025 * unseen_variance(16);
  const RatioBand one = band_of(1, true, false);
  CHECK(one.p50 == Approx(0.2).epsilon(1e-6));
  // 64 values show a normal distribution nearly whole.
  CHECK(one.p95 - one.p50 == Approx(z * std::sqrt(noise + 0.01)).epsilon(0.01));
  const RatioBand other = band_of(2, true, false);
  CHECK(other.p05 == Approx(one.p05).epsilon(1e-6));
  CHECK(other.p95 == Approx(one.p95).epsilon(1e-6));
  CHECK(band_of(1, true, true).p05 == Approx(-one.p95).epsilon(1e-6));
  CHECK(std::abs(band_of(1, false, false).p95 - band_of(2, false, false).p95) > 0.01);
}

namespace {

// Steps of 1,000 ms: 300 that do not follow routing, in two parts with an error of 4 % each, and
// 700 that do, 5 % by the load, 6 and 4 % by two curves, 1 % by what nobody knows.
struct Drawn {
  std::vector<StepDraw> draws;
  AveragedDraws averaged;
};

// One error per draw, one in each stratum of the normal distribution, as CurveErrors has them.
std::vector<double> stratified(std::mt19937_64& generator, std::size_t draws) {
  std::vector<double> errors;
  for (std::size_t stratum = 0; stratum < draws; ++stratum) {
    errors.push_back(
        normal_quantile((static_cast<double>(stratum) + 0.5) / static_cast<double>(draws)));
  }
  std::shuffle(errors.begin(), errors.end(), generator);
  return errors;
}

Drawn drawn_steps(unsigned seed, std::size_t draws) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal;
  std::vector<std::vector<double>> errors;
  for (int curve = 0; curve < 4; ++curve) errors.push_back(stratified(generator, draws));
  Drawn drawn;
  for (std::size_t draw = 0; draw < draws; ++draw) {
    const double load = normal(generator);
    const double mean_ms = 300 + 700 * (1 + 0.05 * load + 0.01 * normal(generator));
    const double errors_ms = 150 * 0.04 * (errors[0][draw] + errors[1][draw]) +
                             700 * (0.06 * errors[2][draw] + 0.04 * errors[3][draw]);
    drawn.averaged.loads.push_back(2 + load);
    drawn.averaged.mean_ms.push_back(mean_ms);
    drawn.averaged.variance.push_back((2 * 36 + 42 * 42 + 28 * 28) / (mean_ms * mean_ms));
    drawn.draws.push_back({mean_ms + errors_ms, {0.7, 0.1, 0.2, 0}});
  }
  for (int value = 0; value < 64; ++value) {
    drawn.averaged.all_loads.push_back(2 + normal_quantile((value + 0.5) / 64));
  }
  return drawn;
}

struct Range {
  double least = 1e300;
  double most = 0;
  double mean = 0;

  void add(double value, int of) {
    least = std::min(least, value);
    most = std::max(most, value);
    mean += value / of;
  }
  double share() const { return (most - least) / mean; }
};

}  // namespace

TEST_CASE("the ends of a band of 16 draws hardly depend on the seed") {
  constexpr int seeds = 12;
  const SoftwareError software = known(0, 0);
  Range low, high, plain_low, plain_high;
  for (unsigned seed = 0; seed < seeds; ++seed) {
    const Drawn drawn = drawn_steps(seed, 16);
    const SimulatedBand steadied = simulated_band(drawn.draws, software, drawn.averaged);
    low.add(steadied.same_p05_ms, seeds);
    high.add(steadied.same_p95_ms, seeds);
    const SimulatedBand plain = simulated_band(drawn.draws, software);
    plain_low.add(plain.same_p05_ms, seeds);
    plain_high.add(plain.same_p95_ms, seeds);
    CHECK(steadied.p05_ms <= steadied.p50_ms);
    CHECK(steadied.p50_ms <= steadied.p95_ms);
  }
  CAPTURE(low.share(), high.share(), plain_low.share(), plain_high.share());
  CHECK(low.share() < 0.015);
  CHECK(high.share() < 0.015);
  CHECK(low.share() < plain_low.share() / 2);
  CHECK(high.share() < plain_high.share() / 2);
  // They are those of so many draws that nothing has to be told from few.
  const SimulatedBand many = simulated_band(drawn_steps(99, 20'000).draws, software);
  CHECK(low.mean == Approx(many.same_p05_ms).epsilon(0.005));
  CHECK(high.mean == Approx(many.same_p95_ms).epsilon(0.005));
}

TEST_CASE("loads that say nothing of steps are not used, and few draws are taken as they are") {
  const SoftwareError software = known(0, 0);
  Drawn drawn = drawn_steps(1, 16);
  const SimulatedBand with_loads = simulated_band(drawn.draws, software, drawn.averaged);
  AveragedDraws without = drawn.averaged;
  without.loads.clear();
  without.all_loads.clear();
  const SimulatedBand no_loads = simulated_band(drawn.draws, software, without);
  CHECK(no_loads.same_p05_ms != with_loads.same_p05_ms);
  std::mt19937_64 generator(3);
  std::normal_distribution<double> normal;
  for (double& load : drawn.averaged.loads) load = normal(generator);
  const SimulatedBand noise = simulated_band(drawn.draws, software, drawn.averaged);
  CHECK(noise.same_p05_ms == no_loads.same_p05_ms);
  const Drawn few = drawn_steps(1, 4);
  CHECK(simulated_band(few.draws, software, few.averaged).same_p95_ms ==
        simulated_band(few.draws, software).same_p95_ms);
}

namespace {

// A step of `work` milliseconds in each class that takes `factors` times that.
double measured_ms(const WorkShares& work, const WorkShares& factors) {
  double sum = 0;
  for (std::size_t place = 0; place < work_class_count; ++place) {
    sum += work[place] * factors[place];
  }
  return sum;
}

WorkShares drawn_work(Stream& stream) {
  const double total = 200 * std::exp(std::log(100) * stream.uniform());
  const double exchange = 0.5 * stream.uniform();
  const double memory = 0.1 + 0.2 * stream.uniform();
  return {total * (1 - exchange - memory), total * memory, 0, total * exchange};
}

StepClasses classes_of_work(const WorkShares& work) {
  StepClasses classes;
  classes.compute = work[0] + work[1];
  classes.exchange = work[2] + work[3];
  return classes;
}

// The share of new steps inside the 90 % band after `rows` measured ones, of a software whose level
// comes from the prior and whose classes of work are off by their systematic errors; and the mean
// width of logs.
std::pair<double, double> fitted_coverage(int rows, int runs) {
  SoftwarePrior prior;
  prior.mean[0] = 0.5;
  prior.deviation[0] = 0.4;
  prior.deviation[1] = 0.25;
  prior.scatter[0] = 0.06;
  int inside = 0;
  double width = 0;
  for (int run = 0; run < runs; ++run) {
    Stream stream({11, Purpose::test_data, static_cast<std::uint32_t>(run), 0, 1});
    const double level = prior.mean[0] + prior.deviation[0] * stream.normal();
    WorkShares factors{};
    for (std::size_t work = 0; work < work_class_count; ++work) {
      factors[work] =
          std::exp(level + systematic_error(static_cast<WorkClass>(work), false) * stream.normal());
    }
    const double chi = 2 * stream.gamma(prior.scatter_rows / 2);
    const double scatter = prior.scatter[0] * std::sqrt(prior.scatter_rows / chi);
    const auto noise = [&] { return std::exp(std::hypot(scatter, run_noise) * stream.normal()); };
    std::vector<MeasuredRow> steps;
    WorkShares mean{};
    for (int row = 0; row < rows; ++row) {
      const WorkShares work = drawn_work(stream);
      const StepClasses classes = classes_of_work(work);
      steps.push_back({classes, measured_ms(work, factors) * noise()});
      for (std::size_t place = 0; place < work_class_count; ++place) {
        mean[place] += work[place] / classes.total() / rows;
      }
    }
    const std::vector<Unknown> free = carried_by(steps, prior);
    const StepFit fit = fit_steps(steps, free, prior);
    const WorkShares work = drawn_work(stream);
    const StepClasses asked = classes_of_work(work);
    WorkShares shares = work;
    for (double& share : shares) share /= asked.total();
    const SoftwareError error = fitted_error(
        summary_of(fit, free, mean, left_out_errors(steps, free, prior)), shares[2] + shares[3], 0);
    // Many draws: the curves' errors are part of the scatter here.
    const std::vector<StepDraw> draws(64, {scaled_ms(asked, fit.unknowns), shares});
    const SimulatedBand band = simulated_band(draws, error);
    const double value = measured_ms(work, factors) * noise();
    if (band.p05_ms <= value && value <= band.p95_ms) ++inside;
    width += std::log(band.p95_ms / band.p05_ms) / runs;
  }
  return {static_cast<double>(inside) / runs, width};
}

}  // namespace

TEST_CASE("bands of a software that was fitted to three, five and twelve steps hold nine of ten") {
  double before = 1e9;
  for (const int rows : {3, 5, 12}) {
    const auto [inside, width] = fitted_coverage(rows, 1500);
    CAPTURE(rows, inside, width);
    CHECK(inside > 0.85);
    CHECK(inside < 0.95);
    CHECK(width < before);
    before = width;
  }
}

}  // namespace moesim::uncertainty
