#include <algorithm>
#include <cmath>

#include "tests/support/catch.hpp"
#include "tests/support/measured_rows.hpp"

using namespace moesim;
using namespace moesim::uncertainty;

namespace {

// Rows of all kinds: steps as above with experts and NICs, layers of experts beside other work,
// exchanges on either side of a domain's border.
StepClasses drawn_row(Stream& stream, RowKind kind, bool crosses) {
  StepClasses classes = drawn_classes(stream);
  if (kind == RowKind::exchange) {
    classes = {};
    (crosses ? classes.crossing : classes.exchange) = 0.1 * std::exp(3 * stream.uniform());
  } else {
    classes.experts =
        (kind == RowKind::layer ? 0.3 + 0.6 * stream.uniform() : 0.3) * classes.compute;
    classes.compute -= classes.experts;
    if (kind == RowKind::layer) classes.host = 0;
    if (crosses) std::swap(classes.exchange, classes.crossing);
  }
  classes.kind = kind;
  return classes;
}

struct DrawnSoftware {
  Unknowns truth{};
  std::array<double, row_kind_count> scatter{};

  MeasuredRow row(Stream& stream, RowKind kind, bool crosses) const {
    const StepClasses classes = drawn_row(stream, kind, crosses);
    const double noise = scatter[static_cast<std::size_t>(kind)] * stream.normal();
    return {classes, scaled_ms(classes, truth) * std::exp(noise)};
  }
};

DrawnSoftware drawn_software(Stream& stream, const SoftwarePrior& known) {
  DrawnSoftware made;
  for (std::size_t place = 0; place < unknown_count; ++place) {
    made.truth[place] = known.mean[place] + known.deviation[place] * stream.normal();
  }
  made.truth[3] = std::abs(made.truth[3]);
  for (std::size_t kind = 0; kind < row_kind_count; ++kind) {
    const double chi = 2 * stream.gamma(known.scatter_rows / 2);
    made.scatter[kind] = known.scatter[kind] * std::sqrt(known.scatter_rows / chi);
  }
  return made;
}

SoftwarePrior whole_prior() {
  const std::vector<MeasuredRow> rows = {{{1, 0, 0, 1, 0, RowKind::layer}, 1},
                                         {{0, 1, 0, 0, 0, RowKind::exchange}, 1},
                                         {{0, 0, 0, 0, 1, RowKind::exchange}, 1}};
  return prior_with(prior(), rows);
}

struct Held {
  double inside = 0;
  double width = 0;
};

// How many new steps through NICs lie inside 90 % bands, and how many new exchanges there, after 3
// steps inside a domain and so many layers and exchanges.
std::pair<Held, Held> mixed_coverage(int layers, int exchanges, int runs) {
  Held steps;
  Held alone;
  for (int run = 0; run < runs; ++run) {
    Stream stream({6, Purpose::test_data, static_cast<std::uint32_t>(run), 0, 1});
    const SoftwarePrior known = whole_prior();
    const DrawnSoftware software = drawn_software(stream, known);
    std::vector<MeasuredRow> rows;
    for (int row = 0; row < 3; ++row) rows.push_back(software.row(stream, RowKind::step, false));
    for (int row = 0; row < layers; ++row) {
      rows.push_back(software.row(stream, RowKind::layer, false));
    }
    for (int row = 0; row < exchanges; ++row) {
      rows.push_back(software.row(stream, RowKind::exchange, row % 2 == 0));
    }
    const StepFit fit = fit_steps(rows, carried_by(rows, known), known);
    const StepSoftware fitted = known_software(fit);
    const MeasuredRow step = software.row(stream, RowKind::step, true);
    const Interval band = fitted.band(step.predicted, {"", "machine", "model", false}, "bf16", 0, 0)
                              .widest()
                              .log_ratios;
    const double off = std::log(step.measured_ms / scaled_ms(step.predicted, fit.unknowns));
    steps.inside += (band.contains(off) ? 1.0 : 0.0) / runs;
    steps.width += band.width() / runs;
    const MeasuredRow exchange = software.row(stream, RowKind::exchange, true);
    const StepSoftware::AloneFactor factor = fitted.exchange_factor(true, 0.9);
    const double beyond =
        std::log(exchange.measured_ms / (factor.factor * exchange.predicted.total()));
    alone.inside += (std::abs(beyond) <= factor.half_width ? 1.0 : 0.0) / runs;
    alone.width += 2 * factor.half_width / runs;
  }
  return {steps, alone};
}

}  // namespace

TEST_CASE("steps, layers and exchanges give all unknowns back that they tell apart") {
  Stream stream({7, Purpose::test_data, 0, 0, 0});
  DrawnSoftware software;
  software.truth = {0.5, 0.2, -0.3, 12, 0.15, 0.25, -0.1, -0.2};
  software.scatter = {0.01, 0.01, 0.01};
  std::vector<MeasuredRow> rows;
  for (int row = 0; row < 90; ++row) {
    rows.push_back(software.row(stream, static_cast<RowKind>(row % 3), row % 2 == 0));
  }
  const SoftwarePrior known = prior_with(prior(), rows);
  const std::vector<Unknown> free = carried_by(rows, known);
  CHECK(free.size() == unknown_count);
  const StepFit fit = fit_steps(rows, free, known);
  for (std::size_t place = 0; place < unknown_count; ++place) {
    CAPTURE(place, fit.unknowns[place]);
    const double deviation = std::sqrt(fit.covariance[place][place]);
    CHECK(std::abs(fit.unknowns[place] - software.truth[place]) < 3 * deviation);
    CHECK(deviation < 0.4 * known.deviation[place]);
  }
  for (const Scatter& each : fit.scatters) {
    CHECK(each.rows == 30);
    CHECK(each.deviation < 0.04);
  }
}

TEST_CASE("bands after steps, layers and exchanges hold nine of ten new steps and exchanges") {
  double steps_before = 1e9;
  double alone_before = 1e9;
  for (const int each : {1, 3, 8}) {
    const auto [steps, alone] = mixed_coverage(each, each, 1500);
    CAPTURE(each, steps.inside, steps.width, alone.inside, alone.width);
    CHECK(steps.inside > 0.87);
    CHECK(steps.inside < 0.95);
    CHECK(alone.inside > 0.85);
    CHECK(alone.inside < 0.95);
    CHECK(steps.width < steps_before);
    CHECK(alone.width < alone_before);
    steps_before = steps.width;
    alone_before = alone.width;
  }
}

namespace {

// A step with exchanges across nodes or inside, that waits for the host.
StepClasses drawn_layout(Stream& stream, bool crosses) {
  const double exchange = 0.1 + 0.5 * stream.uniform();
  const double host = 0.2 * stream.uniform();
  StepClasses classes{1000 * (1 - exchange - host), 1000 * exchange, 1000 * host};
  if (crosses) std::swap(classes.exchange, classes.crossing);
  return classes;
}

enum class Alone { none, across, both };

// How far steps are off on average that were not measured, in logs, after so many that were, and
// exchanges alone. The software takes 1.15 times as long, all exchanges 1.4 times that; those alone
// differ from them as the prior expects; rows scatter by 2 %.
double mean_error(int count, Alone alone, int runs) {
  SoftwarePrior steps_prior = prior();
  steps_prior.mean[at(Unknown::level)] = 0.05;
  steps_prior.deviation[at(Unknown::level)] = 0.15;
  double error = 0;
  for (int run = 0; run < runs; ++run) {
    Stream stream({12, Purpose::test_data, static_cast<std::uint32_t>(run), 0, 1});
    Unknowns truth{};
    truth[at(Unknown::level)] = std::log(1.15);
    truth[at(Unknown::exchange)] = std::log(1.4);
    truth[at(Unknown::exchange_alone)] = 0.15 * stream.normal();
    std::vector<MeasuredRow> rows;
    const auto add = [&](const StepClasses& classes) {
      rows.push_back({classes, scaled_ms(classes, truth) * std::exp(0.02 * stream.normal())});
    };
    std::vector<StepClasses> asked;
    for (int step = 0; step < 4; ++step) asked.push_back(drawn_layout(stream, step % 2 == 0));
    for (int step = 0; step < count; ++step) add(drawn_layout(stream, step % 2 == 0));
    if (alone != Alone::none) add({0, 0, 0, 0, 5, RowKind::exchange});
    if (alone == Alone::both) add({0, 2, 0, 0, 0, RowKind::exchange});
    const SoftwarePrior known = prior_with(steps_prior, rows);
    const StepFit fit = fit_steps(rows, carried_by(rows, known), known);
    for (const StepClasses& classes : asked) {
      error += std::abs(std::log(scaled_ms(classes, truth) / scaled_ms(classes, fit.unknowns)));
    }
  }
  return error / (4 * runs);
}

}  // namespace

TEST_CASE("exchanges measured beside steps do not make steps less known") {
  for (const int count : {3, 4, 5, 6}) {
    const double steps = mean_error(count, Alone::none, 400);
    const double with_one = mean_error(count, Alone::across, 400);
    const double with_both = mean_error(count, Alone::both, 400);
    CAPTURE(count, steps, with_one, with_both);
    // An exchange brings its own factor and that of NICs into question, which is no more than a few
    // steps tell; it pushes no other factor out of the fit.
    CHECK(with_one < 1.2 * steps);
    CHECK(with_both < steps);
    CHECK(steps < 0.04);
  }
}

TEST_CASE("rows of steps alone do not bring layers and exchanges into question") {
  Stream stream({8, Purpose::test_data, 0, 0, 0});
  const auto steps = measured(stream, {0.3, 0, 0, 0}, 9, 0.05);
  const SoftwarePrior known = prior_with(prior(), steps);
  CHECK(known.deviation == prior().deviation);
  const std::vector<Unknown> free = carried_by(steps, known);
  CHECK(free.size() <= 4);
  std::vector<MeasuredRow> more = steps;
  more.push_back({{0, 2, 0, 0, 0, RowKind::exchange}, 3});
  // It does not leave its domain: NICs stay as uncertain as the law, and no row carries them.
  const SoftwarePrior inside = prior_with(prior(), more);
  CHECK(inside.deviation[5] == Approx(0.2));
  const std::vector<Unknown> carried = carried_by(more, inside);
  CHECK(std::find(carried.begin(), carried.end(), Unknown::nic) == carried.end());
  CHECK(fit_steps(more, carried, inside).covariance[5][5] == Approx(0.04));
  CHECK(alone_in(more) == std::vector<Unknown>{Unknown::exchange_alone});
  // An unknown that is not in question is not fitted, whoever asks for it.
  const StepFit fit = fit_steps(steps, {Unknown::level, Unknown::nic}, known);
  CHECK(fit.unknowns[5] == 0);
  CHECK(fit.covariance[5][5] == 0);
}

TEST_CASE("an exchange alone has no fixed cost and no part in the level of steps of its own") {
  const SoftwarePrior known = whole_prior();
  std::vector<MeasuredRow> rows(3, MeasuredRow{{1000, 100, 50}, 1500});
  rows.push_back({{0, 0, 0, 0, 2, RowKind::exchange}, 2});
  rows.push_back({{0, 0, 0, 0, 4, RowKind::exchange}, 4});
  const StepFit fit = fit_steps(rows, carried_by(rows, known), known);
  CHECK(scaled_ms(rows[3].predicted, fit.unknowns) == Approx(2).epsilon(0.1));
  CHECK(scaled_ms(rows[0].predicted, fit.unknowns) == Approx(1500).epsilon(0.05));
  CHECK(log_slopes(rows[3].predicted, fit.unknowns)[3] == 0);
}

TEST_CASE("exchanges alone say nothing of the level") {
  const SoftwarePrior known = whole_prior();
  std::vector<MeasuredRow> rows;
  for (const double ms : {0.1, 0.4, 3.0}) {
    rows.push_back({{0, ms, 0, 0, 0, RowKind::exchange}, 2 * ms});
  }
  const std::vector<Unknown> free = carried_by(rows, known);
  CHECK(free.front() == Unknown::exchange);
  CHECK(std::find(free.begin(), free.end(), Unknown::level) == free.end());
  const StepFit fit = fit_steps(rows, free, known);
  CHECK(fit.unknowns[0] == known.mean[0]);
  CHECK(fit.unknowns[1] > 0.2);  // log of the factor on exchanges
  CHECK(scaled_ms(rows[1].predicted, fit.unknowns) == Approx(0.8).epsilon(0.1));
  // A layer or a step beside them does.
  rows.push_back({{1000, 100, 50}, 1500});
  CHECK(carried_by(rows, known).front() == Unknown::level);
}

TEST_CASE("exchanges alone decide the product of their factors, whatever the level is") {
  for (const bool crosses : {false, true}) {
    std::vector<MeasuredRow> rows;
    for (const double ms : {0.1, 0.4, 3.0, 8.0, 20.0, 50.0}) {
      StepClasses classes{0, 0, 0, 0, 0, RowKind::exchange};
      (crosses ? classes.crossing : classes.exchange) = ms;
      rows.push_back({classes, 1.15 * ms});
    }
    const SoftwarePrior known = prior_with(prior(), rows);
    const StepFit fit = fit_steps(rows, carried_by(rows, known), known);
    const double alone =
        variance_along(log_slopes(rows[0].predicted, fit.unknowns), fit.covariance);
    CAPTURE(crosses, std::sqrt(alone));
    // Six rows at the scatter of the fit: its deviation over the root of six.
    const double scatter = fit.scatter(RowKind::exchange).deviation;
    CHECK(std::sqrt(alone) == Approx(scatter / std::sqrt(6)).epsilon(0.05));
    CHECK(software_of(fit).exchange_factor(crosses, 0.9).half_width < 0.12);
    // They say nothing of computation: the level is as uncertain as before.
    CHECK(fit.covariance[0][0] == Approx(0.09));
    // A step's exchanges are known but for what is alone (15 %), its level and they together.
    StepClasses of_step = rows[0].predicted;
    of_step.kind = RowKind::step;
    Unknowns slopes = log_slopes(of_step, fit.unknowns);
    slopes[3] = 0;  // the fixed cost is not of its exchanges
    CHECK(slopes[5] == (crosses ? 1 : 0));
    CHECK(std::sqrt(variance_along(slopes, fit.covariance)) < 0.25);
  }
}

TEST_CASE("bands after exchanges alone hold nine of ten new ones") {
  for (const int count : {3, 8}) {
    double inside = 0;
    constexpr int runs = 1500;
    for (int run = 0; run < runs; ++run) {
      Stream stream({9, Purpose::test_data, static_cast<std::uint32_t>(run), 0, 1});
      const SoftwarePrior known = whole_prior();
      const DrawnSoftware software = drawn_software(stream, known);
      std::vector<MeasuredRow> rows;
      for (int row = 0; row < count; ++row) {
        rows.push_back(software.row(stream, RowKind::exchange, row % 2 == 0));
      }
      const StepFit fit = fit_steps(rows, carried_by(rows, known), known);
      const MeasuredRow asked = software.row(stream, RowKind::exchange, true);
      const auto factor = software_of(fit).exchange_factor(true, 0.9);
      const double off = std::log(asked.measured_ms / (factor.factor * asked.predicted.total()));
      inside += (std::abs(off) <= factor.half_width ? 1.0 : 0.0) / runs;
    }
    CAPTURE(count, inside);
    CHECK(inside > 0.85);
    CHECK(inside < 0.95);
  }
}

TEST_CASE("exchanges that all cross domains say nothing of those inside") {
  const StepClasses inside{0, 1, 0, 0, 0, RowKind::exchange};
  const StepClasses across{0, 0, 0, 0, 1, RowKind::exchange};
  const StepClasses step{600, 300, 0};  // its exchanges are all inside
  std::vector<MeasuredRow> rows;
  for (const double ms : {1.0, 3.0, 9.0, 20.0}) {
    rows.push_back({{0, 0, 0, 0, ms, RowKind::exchange}, 1.8 * ms});
  }
  for (const bool has_steps : {false, true}) {
    CAPTURE(has_steps);
    if (has_steps) {
      for (const double share : {0.1, 0.3, 0.5}) {
        rows.push_back({{900 * (1 - share), 900 * share, 0}, 1.35 * 900});
      }
    }
    const SoftwarePrior known = prior_with(prior(), rows);
    CHECK(known.crossing_apart);
    const StepFit fit = fit_steps(rows, carried_by(rows, known), known);
    const double exchange = fit.unknowns[1], nic = fit.unknowns[5];
    // Steps say that those inside take as long as the rest; without steps nothing does.
    CHECK(exchange == Approx(0).margin(has_steps ? 0.03 : 1e-12));
    CHECK(nic > 0.1);
    CHECK(scaled_ms(across, fit.unknowns) == Approx(1.8).epsilon(0.05));
    CHECK(scaled_ms(step, fit.unknowns) ==
          Approx(has_steps ? 1.35 * 900 : std::exp(0.3) * 900).epsilon(0.03));
    const auto deviation = [&](const StepClasses& classes) {
      Unknowns slopes = log_slopes(classes, fit.unknowns);
      return std::sqrt(variance_along(slopes, fit.covariance));
    };
    // What was measured is known. What was not is off by a quarter, and by what the level and what
    // is alone leave open beside a product that is known.
    CHECK(deviation(across) < 0.1);
    if (has_steps) {
      CHECK(deviation(inside) > 0.15);
    } else {
      CHECK(deviation(inside) > 0.33);
      CHECK(deviation(inside) < std::hypot(0.25, 0.3, 0.15));
    }
  }
  // A row inside says that both are to be told from one another.
  rows.push_back({inside, 1.4});
  CHECK_FALSE(prior_with(prior(), rows).crossing_apart);
}
