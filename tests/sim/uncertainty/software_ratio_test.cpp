#include "sim/uncertainty/ratios/software_ratio.hpp"

#include <boost/math/distributions/students_t.hpp>
#include <cmath>

#include "sim/base/random.hpp"
#include "sim/uncertainty/software/step_fit.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::uncertainty;

namespace {

// What StepSoftware::applied() makes of classes.
StepClasses applied(const StepClasses& classes, const Unknowns& unknowns) {
  const auto factor = [&](Unknown unknown) { return std::exp(unknowns[at(unknown)]); };
  const double level = factor(Unknown::level);
  const double exchange = level * factor(Unknown::exchange);
  return {level * classes.compute, exchange * classes.exchange,
          level * factor(Unknown::host) * classes.host + unknowns[at(Unknown::fixed_ms)],
          level * factor(Unknown::experts) * classes.experts,
          exchange * factor(Unknown::nic) * classes.crossing};
}

StepSoftware known(const StepFit& fit) {
  StepSoftware software = software_of(fit);
  software.models = {"model"};
  software.precisions = {"bf16"};
  return software;
}

OwnStep step_of(const StepClasses& predicted, const StepSoftware& software) {
  return {"model", "bf16", applied(predicted, software.unknowns)};
}

double half_width(const Band& band) { return band.widest().log_ratios.high; }

// A level, exchanges and the host known to 30, 25 and 42 %, a scatter of 5 % of ten degrees.
StepSoftware uncertain() {
  StepSoftware software = known({});
  software.unknowns = {0.2, 0.1, -0.3, 5};
  const double deviations[] = {0.3, 0.25, 0.42, 3};
  for (std::size_t place = 0; place < std::size(deviations); ++place) {
    software.covariance[place][place] = deviations[place] * deviations[place];
  }
  software.scatters[0] = {0.05, 10, 12};
  return software;
}

}  // namespace

TEST_CASE("slopes of an applied step are those of its prediction") {
  const StepClasses predicted{100, 20, 5, 60, 30};
  const Unknowns unknowns = {0.3, -0.2, 0.4, 7, 0.1, 0.25};
  const Unknowns slopes = applied_slopes(applied(predicted, unknowns), unknowns[3]);
  const Unknowns expected = log_slopes(predicted, unknowns);
  for (std::size_t place = 0; place < unknown_count; ++place) {
    CHECK(slopes[place] == Approx(expected[place]).epsilon(1e-12));
  }
}

TEST_CASE("of two like steps the scatter of two configurations is left") {
  const StepSoftware software = uncertain();
  const OwnStep step = step_of({100, 20, 5, 60}, software);
  const Band band = own_ratio_band(software, step, step, {});
  const double t = boost::math::quantile(boost::math::students_t(10), 0.95);
  CHECK(half_width(band) == Approx(t * std::sqrt(2.0) * 0.05));
  CHECK(band.widest().log_ratios.low == -half_width(band));
  CHECK(band.held_out == 12);
}

TEST_CASE("what moves two steps apart makes their ratio less certain, within their own bands") {
  const StepSoftware software = uncertain();
  const Subject subject{"", "machine", "model", false};
  const StepClasses computes{180, 5, 1};
  double before = 0;
  for (const double exchange : {5.0, 50.0, 150.0}) {
    const StepClasses predicted{100, exchange, 1};
    const double half = half_width(
        own_ratio_band(software, step_of(computes, software), step_of(predicted, software), {}));
    CHECK(half > before);
    before = half;
    const double one = half_width(software.band(computes, subject, "bf16", 0, 0));
    const double other = half_width(software.band(predicted, subject, "bf16", 0, 0));
    CHECK(half < std::hypot(one, other));
  }
}

TEST_CASE("a ratio is as uncertain as two independent steps at most") {
  StepSoftware software = uncertain();
  // A level that is too high stands for an exchange that is too low.
  software.covariance[at(Unknown::level)][at(Unknown::exchange)] = -0.9 * 0.3 * 2;
  software.covariance[at(Unknown::exchange)][at(Unknown::level)] = -0.9 * 0.3 * 2;
  software.covariance[at(Unknown::exchange)][at(Unknown::exchange)] = 4;
  const Subject subject{"", "machine", "model", false};
  const StepClasses computes{200, 0.01, 1}, exchanges{10, 150, 1};
  const double half = half_width(
      own_ratio_band(software, step_of(computes, software), step_of(exchanges, software), {}));
  CHECK(half == Approx(std::hypot(half_width(software.band(computes, subject, "bf16", 0, 0)),
                                  half_width(software.band(exchanges, subject, "bf16", 0, 0)))));
}

TEST_CASE("models and precisions that were not measured count where they differ") {
  const StepSoftware software = uncertain();
  Components components;
  components.model = 0.08;
  components.precision = 0.06;
  const OwnStep step = step_of({100, 20, 5, 60}, software);
  const auto half = [&](const std::string& one, const std::string& other, const char* precision) {
    OwnStep first = step, second = step;
    first.model = one;
    second.model = other;
    second.precision = precision;
    return half_width(own_ratio_band(software, first, second, components));
  };
  const double t = boost::math::quantile(boost::math::students_t(10), 0.95);
  const double scatter = 2 * 0.05 * 0.05;
  CHECK(half("model", "model", "bf16") == Approx(t * std::sqrt(scatter)));
  CHECK(half("new", "new", "bf16") == Approx(t * std::sqrt(scatter)));
  CHECK(half("model", "new", "bf16") == Approx(t * std::sqrt(scatter + 0.08 * 0.08)));
  CHECK(half("newer", "new", "bf16") == Approx(t * std::sqrt(scatter + 2 * 0.08 * 0.08)));
  CHECK(half("model", "model", "fp8") == Approx(t * std::sqrt(scatter + 0.06 * 0.06)));
}

TEST_CASE("bands of ratios after four and twelve steps hold nine of ten") {
  SoftwarePrior prior;
  prior.mean = {0.3, 0, 0, 0};
  prior.deviation = {0.3, 0.25, 0.42, 20};
  prior.scatter = {0.1, 0.08, 0.08};
  const auto drawn_classes = [](Stream& stream) {
    const double total = 200 * std::exp(std::log(100) * stream.uniform());
    const double exchange = 0.5 * stream.uniform(), host = 0.4 * stream.uniform();
    return StepClasses{total * (1 - exchange - host), total * exchange, total * host};
  };
  constexpr int runs = 1500;
  for (const int rows : {4, 12}) {
    int inside = 0;
    for (std::uint32_t run = 0; run < runs; ++run) {
      Stream stream({7, Purpose::test_data, run, 0, static_cast<std::uint32_t>(rows)});
      Unknowns truth{};
      for (std::size_t place = 0; place < 4; ++place) {
        truth[place] = prior.mean[place] + prior.deviation[place] * stream.normal();
      }
      truth[3] = std::abs(truth[3]);
      const double chi = 2 * stream.gamma(prior.scatter_rows / 2);
      const double scatter = prior.scatter[0] * std::sqrt(prior.scatter_rows / chi);
      const auto measured_ms = [&](const StepClasses& classes) {
        return scaled_ms(classes, truth) * std::exp(scatter * stream.normal());
      };
      std::vector<MeasuredRow> steps;
      for (int row = 0; row < rows; ++row) {
        const StepClasses classes = drawn_classes(stream);
        steps.push_back({classes, measured_ms(classes)});
      }
      const StepSoftware software = known(fit_steps(steps, carried_by(steps, prior), prior));
      const StepClasses one = drawn_classes(stream), other = drawn_classes(stream);
      const double measured = std::log(measured_ms(one) / measured_ms(other));
      const double predicted =
          std::log(scaled_ms(one, software.unknowns) / scaled_ms(other, software.unknowns));
      const Band band =
          own_ratio_band(software, step_of(one, software), step_of(other, software), {});
      if (band.widest().log_ratios.contains(measured - predicted)) ++inside;
    }
    CAPTURE(rows, inside);
    CHECK(inside > 0.86 * runs);
    CHECK(inside < 0.95 * runs);
  }
}
