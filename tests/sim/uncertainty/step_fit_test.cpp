#include <cmath>

#include "sim/base/error.hpp"
#include "sim/base/statistics.hpp"
#include "sim/uncertainty/software/step_fit.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/measured_rows.hpp"

using namespace moesim;
using namespace moesim::uncertainty;

namespace {

// The share of new steps inside 90 % bands after `rows` steps of software that is drawn from the
// prior, and the median width of logs (a mean would be that of the few runs whose configurations
// scatter by a factor of 40).
std::pair<double, double> coverage(int rows, int runs) {
  int inside = 0;
  std::vector<double> widths;
  for (int run = 0; run < runs; ++run) {
    Stream stream({5, Purpose::test_data, static_cast<std::uint32_t>(run), 0, 1});
    const SoftwarePrior known = prior();
    Unknowns truth{};
    for (std::size_t place = 0; place < of_steps.size(); ++place) {
      truth[place] = known.mean[place] + known.deviation[place] * stream.normal();
    }
    truth[3] = std::abs(truth[3]);
    // An inverse chi square with as many degrees as the prior.
    const double chi = 2 * stream.gamma(known.scatter_rows / 2);
    const double scatter = known.scatter[0] * std::sqrt(known.scatter_rows / chi);
    const auto steps = measured(stream, truth, rows, scatter);
    const StepFit fit = fit_steps(steps, carried_by(steps, known), known);
    const StepClasses asked = drawn_classes(stream);
    const double value = std::log(scaled_ms(asked, truth) / scaled_ms(asked, fit.unknowns)) +
                         scatter * stream.normal();
    const Subject subject{"", "machine", "model", false};
    const Interval band =
        known_software(fit).band(asked, subject, "bf16", 0, 0).widest().log_ratios;
    if (band.contains(value)) ++inside;
    widths.push_back(band.width());
  }
  return {static_cast<double>(inside) / runs, median(widths)};
}

}  // namespace

TEST_CASE("many rows with little noise give the unknowns back") {
  Stream stream({1, Purpose::test_data, 0, 0, 0});
  const Unknowns truth = {0.5, 0.2, -0.3, 12};
  const auto steps = measured(stream, truth, 60, 0.01);
  const StepFit fit = fit_steps(steps, all_of_steps, prior());
  for (std::size_t place = 0; place < of_steps.size(); ++place) {
    const double deviation = std::sqrt(fit.covariance[place][place]);
    CHECK(std::abs(fit.unknowns[place] - truth[place]) < 3 * deviation);
    CHECK(deviation < 0.4 * prior().deviation[place]);
  }
  CHECK(fit.unknowns[0] == Approx(0.5).margin(0.02));
  CHECK(fit.effective > 3.5);
  CHECK(fit.scatter(RowKind::step).deviation < 0.04);
}

TEST_CASE("bands after one, three, five and twelve steps hold nine of ten new ones") {
  double before = 1e9;
  for (const int rows : {1, 3, 5, 12}) {
    const auto [inside, width] = coverage(rows, 1500);
    CAPTURE(rows, inside, width);
    CHECK(inside > 0.87);
    CHECK(inside < 0.95);
    CHECK(width < before);
    before = width;
  }
}

TEST_CASE("three steps tell most of a level") {
  double before = 0;
  double after = 0;
  for (std::uint32_t run = 0; run < 200; ++run) {
    Stream stream({9, Purpose::test_data, run, 0, 2});
    Unknowns truth{};
    truth[0] = 0.3 + 0.3 * stream.normal();
    const auto steps = measured(stream, truth, 3, 0.05);
    const StepFit fit = fit_steps(steps, carried_by(steps, prior()), prior());
    before += std::abs(truth[0] - 0.3) / 200;
    after += std::abs(truth[0] - fit.unknowns[0]) / 200;
  }
  CHECK(after < before / 3);
}

TEST_CASE("unknowns that move rows apart are fitted, however few rows there are") {
  Stream stream({2, Purpose::test_data, 0, 0, 0});
  const auto steps = measured(stream, {0.3, 0, 0, 0}, 6, 0.05);
  for (const int count : {2, 3, 6}) {
    CAPTURE(count);
    const std::vector<MeasuredRow> rows(steps.begin(), steps.begin() + count);
    const std::vector<Unknown> free = carried_by(rows, prior());
    CHECK(free.size() == of_steps.size());
    // What they take from the rows says nothing of how far rows scatter: of 2 steps, beside the
    // prior's two, between none and all.
    const Scatter scatter = fit_steps(rows, free, prior()).scatter(RowKind::step);
    CHECK(scatter.rows == count);
    CHECK(scatter.degrees > prior().scatter_rows);
    CHECK(scatter.degrees < prior().scatter_rows + count - 0.5);
  }
  // Steps that are alike tell nothing apart but their level.
  const std::vector<MeasuredRow> alike(5, MeasuredRow{{500, 100, 50}, 900});
  CHECK(carried_by(alike, prior()) == std::vector<Unknown>{Unknown::level});
}

TEST_CASE("an unknown that is not fitted stays at the prior, as uncertain as before") {
  Stream stream({3, Purpose::test_data, 0, 0, 0});
  const auto steps = measured(stream, {0.4, 0.3, 0, 0}, 10, 0.02);
  const StepFit fit = fit_steps(steps, {Unknown::level}, prior());
  CHECK(fit.unknowns[1] == 0);
  CHECK(fit.covariance[1][1] == Approx(0.25 * 0.25));
  CHECK(fit.effective < 1);
}

TEST_CASE("the prior of rows whose priors differ does not depend on their order") {
  SoftwarePrior one = prior();
  SoftwarePrior other = prior();
  other.mean[0] = 0.7;
  other.deviation[0] = 0.1;
  other.scatter[0] = 0.2;
  const SoftwarePrior mixed = mixture_of({one, other, other});
  // The mean of 0.3, 0.7 and 0.7. Variances inside: (0.09 + 0.01 + 0.01) / 3; between: 2 / 9 x
  // 0.4^2.
  CHECK(mixed.mean[0] == Approx(1.7 / 3));
  CHECK(mixed.deviation[0] == Approx(std::sqrt(0.11 / 3 + 0.32 / 9)));
  CHECK(mixed.scatter[0] == Approx(std::sqrt((0.01 + 0.04 + 0.04) / 3)));
  CHECK(mixed.deviation[1] == Approx(one.deviation[1]));
  CHECK(mixed.scatter_rows == Approx(one.scatter_rows));
  const SoftwarePrior turned = mixture_of({other, one, other});
  CHECK(turned.mean[0] == Approx(mixed.mean[0]));
  CHECK(turned.deviation[0] == Approx(mixed.deviation[0]));
  CHECK(turned.scatter[0] == Approx(mixed.scatter[0]));
  CHECK(mixture_of({one, one}).deviation[0] == Approx(one.deviation[0]));
}

namespace {

// Published steps tell the level to 5 %, as of Megatron-Bridge on H100.
SoftwarePrior named() {
  SoftwarePrior made = prior();
  made.mean[at(Unknown::level)] = 0.015;
  made.deviation[at(Unknown::level)] = 0.05;
  made.scatter[0] = 0.09;
  return made;
}

double level_of(const StepFit& fit) { return std::exp(fit.unknowns[at(Unknown::level)]); }

}  // namespace

TEST_CASE("one configuration sets the level, however well it was known before") {
  const StepClasses classes{600, 300, 0};
  double agreeing = 0;
  for (const double factor : {1.02, 0.7, 1.1, 1.3, 1.6, 2.2}) {
    CAPTURE(factor);
    const std::vector<MeasuredRow> rows = {{classes, 900 * factor}};
    const StepFit fit = fit_steps(rows, carried_by(rows, named()), named());
    CHECK(level_of(fit) == Approx(factor).epsilon(0.01));
    CHECK(fit.effective > 0.95);
    // The scatter is not what the level took.
    CHECK(fit.scatter(RowKind::step).deviation == Approx(0.09).epsilon(0.02));
    const double deviation = std::sqrt(fit.covariance[0][0]);
    if (agreeing == 0) {
      // Two normal distributions of 5 and 9 %, which agree: 4.4 %.
      CHECK(deviation == Approx(0.044).epsilon(0.03));
      agreeing = deviation;
      continue;
    }
    // Beside the level that is taken the one that was known counts, as far as it may be right.
    CHECK(deviation > 1.5 * agreeing);
    CHECK(deviation < 0.11);
  }
  // Exchanges that are measured besides are no other configuration of steps.
  StepClasses exchange{0, 10, 0};
  exchange.kind = RowKind::exchange;
  const std::vector<MeasuredRow> both = {{classes, 1800}, {exchange, 20}};
  const SoftwarePrior known = prior_with(named(), both);
  CHECK(level_of(fit_steps(both, carried_by(both, known), known)) > 1.7);
}

TEST_CASE("steps that are all slower by one factor are not taken for slow exchanges") {
  const std::vector<StepClasses> classes = {{700, 200, 0}, {1200, 600, 0}, {600, 250, 0}};
  for (const double factor : {0.8, 1.3, 1.6}) {
    for (const std::size_t count : {std::size_t{2}, std::size_t{3}}) {
      CAPTURE(factor, count);
      std::vector<MeasuredRow> rows;
      for (std::size_t row = 0; row < count; ++row) {
        rows.push_back({classes[row], factor * classes[row].total()});
      }
      const StepFit fit = fit_steps(rows, {Unknown::level, Unknown::exchange}, named());
      CHECK(level_of(fit) == Approx(factor).epsilon(0.05));
      CHECK(std::exp(fit.unknowns[at(Unknown::exchange)]) == Approx(1).margin(0.12));
    }
  }
}

TEST_CASE("exchanges or a level that fit nearly as well are named") {
  // Both steps are 1.2 times slower, and both spend a third of their time on exchanges: those may
  // be 1.6 times slower instead. A third step without any tells.
  std::vector<MeasuredRow> rows = {{{650, 350, 0}, 1200}, {{1400, 600, 0}, 2400}};
  const std::vector<Unknown> free = {Unknown::level, Unknown::exchange};
  const StepFit fit = fit_steps(rows, free, named());
  REQUIRE(fit.exchange_rival);
  const double apart =
      (*fit.exchange_rival)[at(Unknown::exchange)] - fit.unknowns[at(Unknown::exchange)];
  CHECK(std::abs(apart) > 0.2);
  const double away = (*fit.exchange_rival)[at(Unknown::level)] - fit.unknowns[at(Unknown::level)];
  CHECK(away * apart < 0);
  rows.push_back({{1000, 0, 0}, 1200});
  rows.push_back({{500, 10, 0}, 612});
  CHECK_FALSE(fit_steps(rows, free, named()).exchange_rival);
}

TEST_CASE("the fixed cost is never negative") {
  const std::vector<MeasuredRow> steps = {
      {{100, 0, 0}, 90}, {{1000, 0, 0}, 1400}, {{10000, 0, 0}, 14000}};
  const StepFit fit = fit_steps(steps, {Unknown::level, Unknown::fixed_ms}, prior());
  CHECK(fit.unknowns[3] == 0);
  CHECK_THROWS_AS(fit_steps({}, {Unknown::level}, prior()), Error);
}

TEST_CASE("a row left out is predicted by the others alone") {
  std::vector<MeasuredRow> steps(4, MeasuredRow{{1000, 0, 0}, 1350});
  steps[2].measured_ms = 2700;
  const std::vector<double> errors = left_out_errors(steps, {Unknown::level}, prior());
  CHECK(errors[2] == Approx(std::log(2)).margin(0.05));
  CHECK(errors[0] < 0);
}
