#include "sim/uncertainty/step_fit.hpp"

#include <algorithm>
#include <cmath>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/random.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::uncertainty;

namespace {

// Of steps by themselves.
constexpr std::array all = {Unknown::level, Unknown::exchange, Unknown::host, Unknown::fixed_ms};
const std::vector<Unknown> all_free(all.begin(), all.end());

SoftwarePrior prior() {
  SoftwarePrior made;
  made.mean = {0.3, 0, 0, 0};
  made.deviation = {0.3, 0.25, 0.42, 20};
  made.scatter = {0.1, 0.08, 0.08};
  return made;
}

// Steps of 0.2 to 20 s that spend different shares of their time on exchanges and on the host.
StepClasses drawn_classes(Stream& stream) {
  const double total = 200 * std::exp(std::log(100) * stream.uniform());
  const double exchange = 0.5 * stream.uniform();
  const double host = 0.4 * stream.uniform();
  return {total * (1 - exchange - host), total * exchange, total * host};
}

std::vector<MeasuredStep> measured(Stream& stream, const Unknowns& truth, int rows,
                                   double scatter) {
  std::vector<MeasuredStep> steps;
  for (int row = 0; row < rows; ++row) {
    const StepClasses classes = drawn_classes(stream);
    steps.push_back({classes, scaled_ms(classes, truth) * std::exp(scatter * stream.normal())});
  }
  return steps;
}

StepSoftware known_software(const StepFit& fit) {
  StepSoftware software = software_of(fit);
  software.models = {"model"};
  software.precisions = {"bf16"};
  return software;
}

// The share of new steps inside 90 % bands after `rows` steps of software that is drawn from the
// prior, and the mean width of logs.
std::pair<double, double> coverage(int rows, int runs) {
  int inside = 0;
  double width = 0;
  for (int run = 0; run < runs; ++run) {
    Stream stream({5, Purpose::test_data, static_cast<std::uint32_t>(run), 0, 1});
    const SoftwarePrior known = prior();
    Unknowns truth{};
    for (std::size_t place = 0; place < all.size(); ++place) {
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
    width += band.width() / runs;
  }
  return {static_cast<double>(inside) / runs, width};
}

}  // namespace

TEST_CASE("many rows with little noise give the unknowns back") {
  Stream stream({1, Purpose::test_data, 0, 0, 0});
  const Unknowns truth = {0.5, 0.2, -0.3, 12};
  const auto steps = measured(stream, truth, 60, 0.01);
  const StepFit fit = fit_steps(steps, all_free, prior());
  for (std::size_t place = 0; place < all.size(); ++place) {
    const double deviation = std::sqrt(fit.covariance[place][place]);
    CHECK(std::abs(fit.unknowns[place] - truth[place]) < 3 * deviation);
    CHECK(deviation < 0.4 * prior().deviation[place]);
  }
  CHECK(fit.unknowns[0] == Approx(0.5).margin(0.02));
  CHECK(fit.effective > 3.5);
  CHECK(fit.scatter(RowKind::step).deviation < 0.04);
}

TEST_CASE("bands after three, five and twelve steps hold nine of ten new ones") {
  double before = 1e9;
  for (const int rows : {3, 5, 12}) {
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

TEST_CASE("rows carry fewer unknowns than there are of them") {
  Stream stream({2, Purpose::test_data, 0, 0, 0});
  const auto steps = measured(stream, {0.3, 0, 0, 0}, 6, 0.05);
  CHECK(carried_by({steps.begin(), steps.begin() + 2}, prior()).size() == 1);
  CHECK(carried_by({steps.begin(), steps.begin() + 3}, prior()).size() == 2);
  CHECK(carried_by({steps.begin(), steps.begin() + 4}, prior()).size() == 3);
  // Steps that are alike tell nothing apart but their level.
  const std::vector<MeasuredStep> alike(5, MeasuredStep{{500, 100, 50}, 900});
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

TEST_CASE("the fixed cost is never negative") {
  const std::vector<MeasuredStep> steps = {
      {{100, 0, 0}, 90}, {{1000, 0, 0}, 1400}, {{10000, 0, 0}, 14000}};
  const StepFit fit = fit_steps(steps, {Unknown::level, Unknown::fixed_ms}, prior());
  CHECK(fit.unknowns[3] == 0);
  CHECK_THROWS_AS(fit_steps({}, {Unknown::level}, prior()), Error);
}

TEST_CASE("a row left out is predicted by the others alone") {
  std::vector<MeasuredStep> steps(4, MeasuredStep{{1000, 0, 0}, 1350});
  steps[2].measured_ms = 2700;
  const std::vector<double> errors = left_out_errors(steps, {Unknown::level}, prior());
  CHECK(errors[2] == Approx(std::log(2)).margin(0.05));
  CHECK(errors[0] < 0);
}

TEST_CASE("a software document reads back, and scales the parts of a step to its time") {
  Stream stream({4, Purpose::test_data, 0, 0, 0});
  const auto steps = measured(stream, {0.4, 0.1, 0, 5}, 5, 0.05);
  StepSoftware written = known_software(fit_steps(steps, all_free, prior()));
  written.name = "mine";
  written.source = "a test";
  written.machine = "a GPU";
  const std::string path = "step_software_test.json";
  write_file_atomically(path, written.text());
  const StepSoftware read = StepSoftware::load("./" + path);
  std::remove(path.c_str());
  CHECK(read.text() == written.text());

  training::TrainingStep step;
  step.parts[static_cast<std::size_t>(training::Part::experts)] = 4e5;
  step.parts[static_cast<std::size_t>(training::Part::dispatch)] = 2e5;
  step.parts[static_cast<std::size_t>(training::Part::host)] = 1e5;
  step.step_us = 7e5;
  step.tokens_per_second_per_gpu = 1000;
  // With forced balance the experts take half as long: as a step of its own that has these parts.
  training::TrainingStep forced = step;
  forced.parts[static_cast<std::size_t>(training::Part::experts)] = 2e5;
  forced.step_us = 5e5;
  step.balanced_parts = forced.parts;
  step.balanced_step_us = forced.step_us;
  const training::TrainingStep scaled = read.applied(step);
  CHECK(scaled.step_us / 1e3 == Approx(scaled_ms(classes_of(step), read.unknowns)));
  CHECK(training::sum(scaled.parts) == Approx(scaled.step_us));
  CHECK(scaled.balanced_step_us == Approx(read.applied(forced).step_us));
  CHECK(training::sum(scaled.balanced_parts) == Approx(scaled.balanced_step_us));
  CHECK(scaled.tokens_per_second_per_gpu == Approx(1000 * 7e5 / scaled.step_us));
  const Subject known{"", "a GPU", "model", false};
  const Subject other{"", "a GPU", "another", false};
  const StepClasses classes = classes_of(step);
  const double width = read.band(classes, known, "bf16", 0.2, 0.2).widest().log_ratios.width();
  CHECK(read.band(classes, other, "bf16", 0.2, 0.2).widest().log_ratios.width() > width);
  CHECK(read.band(classes, known, "mxfp8", 0.2, 0.2).widest().log_ratios.width() > width);
}

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

  MeasuredStep row(Stream& stream, RowKind kind, bool crosses) const {
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
  const std::vector<MeasuredStep> rows = {{{1, 0, 0, 1, 0, RowKind::layer}, 1},
                                          {{0, 1, 0, 0, 0, RowKind::exchange}, 1},
                                          {{0, 0, 0, 0, 1, RowKind::exchange}, 1}};
  return prior_with(prior(), rows);
}

struct Held {
  double inside = 0;
  double width = 0;
};

// Of new steps through NICs inside 90 % bands, and of new exchanges there, after 3 steps inside a
// domain and as many layers and exchanges.
std::pair<Held, Held> mixed_coverage(int layers, int exchanges, int runs) {
  Held steps;
  Held alone;
  for (int run = 0; run < runs; ++run) {
    Stream stream({6, Purpose::test_data, static_cast<std::uint32_t>(run), 0, 1});
    const SoftwarePrior known = whole_prior();
    const DrawnSoftware software = drawn_software(stream, known);
    std::vector<MeasuredStep> rows;
    for (int row = 0; row < 3; ++row) rows.push_back(software.row(stream, RowKind::step, false));
    for (int row = 0; row < layers; ++row) {
      rows.push_back(software.row(stream, RowKind::layer, false));
    }
    for (int row = 0; row < exchanges; ++row) {
      rows.push_back(software.row(stream, RowKind::exchange, row % 2 == 0));
    }
    const StepFit fit = fit_steps(rows, carried_by(rows, known), known);
    const StepSoftware fitted = known_software(fit);
    const MeasuredStep step = software.row(stream, RowKind::step, true);
    const Interval band = fitted.band(step.predicted, {"", "machine", "model", false}, "bf16", 0, 0)
                              .widest()
                              .log_ratios;
    const double off = std::log(step.measured_ms / scaled_ms(step.predicted, fit.unknowns));
    steps.inside += (band.contains(off) ? 1.0 : 0.0) / runs;
    steps.width += band.width() / runs;
    const MeasuredStep exchange = software.row(stream, RowKind::exchange, true);
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
  std::vector<MeasuredStep> rows;
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

TEST_CASE("rows of steps alone do not bring layers and exchanges into question") {
  Stream stream({8, Purpose::test_data, 0, 0, 0});
  const auto steps = measured(stream, {0.3, 0, 0, 0}, 9, 0.05);
  const SoftwarePrior known = prior_with(prior(), steps);
  CHECK(known.deviation == prior().deviation);
  const std::vector<Unknown> free = carried_by(steps, known);
  CHECK(free.size() <= 4);
  std::vector<MeasuredStep> more = steps;
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

TEST_CASE("exchanges of a kind that was not measured, or of another size, are not scaled") {
  const std::vector<MeasuredStep> rows(3, MeasuredStep{{0, 0, 0, 0, 2, RowKind::exchange}, 3});
  const SoftwarePrior known = prior_with(prior(), rows);
  StepSoftware software = known_software(fit_steps(rows, carried_by(rows, known), known));
  // As older documents: NICs were in question, so rows may be of both kinds, of any size.
  CHECK(software.has_exchanges(true));
  CHECK(software.has_exchanges(false));
  CHECK(software.exchange_weight(true, {1, 1}) == 1);
  for (const double bytes : {1e6, 4e6, 2e6}) software.exchanges[1].add({bytes, 16});
  CHECK(software.has_exchanges(true));
  CHECK_FALSE(software.has_exchanges(false));
  CHECK(software.exchange_weight(true, {2.5e5, 16}) == 1);  // 4 times less than the least
  CHECK(software.exchange_weight(true, {16e6, 64}) == 1);
  CHECK(software.exchange_weight(true, {1e6 / 8, 16}) == Approx(0.5));
  CHECK(software.exchange_weight(true, {2e6, 128}) == Approx(0.5));  // 8 times the GPUs
  CHECK(software.exchange_weight(true, {1e6 / 16, 16}) == 0);
  CHECK(software.exchange_weight(true, {2e6, 512}) == 0);
  CHECK(software.exchange_weight(true, {0, 16}) == 1);  // a matrix
  software.name = software.source = software.machine = "mine";
  const std::string path = "step_software_exchanges_test.json";
  write_file_atomically(path, software.text());
  const StepSoftware read = StepSoftware::load("./" + path);
  std::remove(path.c_str());
  CHECK(read.text() == software.text());
  CHECK(read.exchanges[1].most.bytes == 4e6);
  CHECK_FALSE(read.has_exchanges(false));
}

TEST_CASE("an exchange alone has no fixed cost and no part in the level of steps of its own") {
  const SoftwarePrior known = whole_prior();
  std::vector<MeasuredStep> rows(3, MeasuredStep{{1000, 100, 50}, 1500});
  rows.push_back({{0, 0, 0, 0, 2, RowKind::exchange}, 2});
  rows.push_back({{0, 0, 0, 0, 4, RowKind::exchange}, 4});
  const StepFit fit = fit_steps(rows, carried_by(rows, known), known);
  CHECK(scaled_ms(rows[3].predicted, fit.unknowns) == Approx(2).epsilon(0.1));
  CHECK(scaled_ms(rows[0].predicted, fit.unknowns) == Approx(1500).epsilon(0.05));
  CHECK(log_slopes(rows[3].predicted, fit.unknowns)[3] == 0);
}

TEST_CASE("exchanges alone say nothing of the level") {
  const SoftwarePrior known = whole_prior();
  std::vector<MeasuredStep> rows;
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
    std::vector<MeasuredStep> rows;
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
      std::vector<MeasuredStep> rows;
      for (int row = 0; row < count; ++row) {
        rows.push_back(software.row(stream, RowKind::exchange, row % 2 == 0));
      }
      const StepFit fit = fit_steps(rows, carried_by(rows, known), known);
      const MeasuredStep asked = software.row(stream, RowKind::exchange, true);
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
  std::vector<MeasuredStep> rows;
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

TEST_CASE("documents of version 1, of steps alone, are still read") {
  // As moesim calibrate wrote it before layers and exchanges were fitted.
  const std::string path = "step_software_1_test.json";
  const auto load = [&](const std::string& covariance, const std::string& scatter) {
    write_file_atomically(path, R"({
 "format": "moesim-training-software", "version": 1, "name": "mine", "source": "steps.csv",
 "machine": "a GPU", "models": ["model"], "precisions": ["bf16"], "rows": 4,
 "fitted": {"level": 1.5, "exchange": 1.2, "host": 0.8, "fixed_ms": 7.0},
 "covariance": )" + covariance + R"(,
 )" + scatter + R"(
 "leave_one_out": {"median_error": 0.04, "worst_error": 0.09}
})");
    return StepSoftware::load("./" + path);
  };
  const std::string square =
      "[[0.01, 0, 0, 0.1], [0, 0.04, 0, 0], [0, 0, 0.09, 0], [0.1, 0, 0, 25]]";
  const StepSoftware read = load(square, R"("scatter": 0.05, "degrees": 6,)");
  CHECK(read.rows() == 4);
  // 1.5 (300 + 200 + 1.2 (100 + 50) + 0.8 x 40) + 7: experts and NICs have no factor of their own.
  const StepClasses classes{300, 100, 40, 200, 50};
  CHECK(scaled_ms(classes, read.unknowns) == Approx(1.5 * 712 + 7));
  CHECK(read.covariance[0][3] == Approx(0.1));
  CHECK(read.covariance[4][4] == 0);
  CHECK(read.scatter(RowKind::layer).rows == 0);
  const Band band = read.band(classes, {"", "a GPU", "model", false}, "bf16", 0.2, 0.2);
  CHECK(band.expected.scatter == Approx(0.05));
  // Student's t with 6 degrees, of what the fit leaves open and the scatter.
  const Unknowns slopes = log_slopes(classes, read.unknowns);
  const double deviation = std::sqrt(variance_along(slopes, read.covariance) + 0.05 * 0.05);
  CHECK(band.widest().log_ratios.high == Approx(1.943180 * deviation));
  CHECK_THROWS_AS(
      load("[[0.01, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]", R"("scatter": 0.05, "degrees": 6,)"),
      Error);
  CHECK_THROWS_AS(load(square, R"("scatter": 0.05,)"), Error);  // of how many degrees
  std::remove(path.c_str());
}
