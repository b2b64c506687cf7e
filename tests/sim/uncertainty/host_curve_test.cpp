#include <algorithm>
#include <cmath>
#include <cstdio>

#include "sim/base/file.hpp"
#include "sim/base/random.hpp"
#include "sim/uncertainty/software/step_fit.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::uncertainty;

namespace {

constexpr std::array factors = {0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0};

SoftwarePrior prior() {
  SoftwarePrior made;
  made.mean = {0.2, 0, 0, 0};
  made.deviation = {0.3, 0.25, 0.42, 20};
  return made;
}

// The prior of software whose published steps tell its level well.
SoftwarePrior named_prior() {
  SoftwarePrior made;
  made.mean = {0.03, 0, 0, 0};
  made.deviation = {0.056, 0.25, 0.42, 20};
  made.scatter = {0.09, 0.1, 0.1};
  return made;
}

// A step whose GPU works for `gpu` ms, a quarter of it in exchanges, while the host launches for
// `host` ms: what the host takes longer is waited for.
StepClasses priced(double gpu, double host, double factor) {
  return {0.75 * gpu, 0.25 * gpu, std::max(0.0, factor * host - gpu)};
}

MeasuredRow measured(double gpu, double host, double level, double truth, double noise = 0) {
  MeasuredRow row{priced(gpu, host, 1), 0};
  row.measured_ms = level * priced(gpu, host, truth).total() * std::exp(noise);
  for (const double factor : factors) row.hosts.add(factor, priced(gpu, host, factor));
  return row;
}

// Steps that wait for the host by much, by a little and not at all.
std::vector<MeasuredRow> steps_of(double level, double truth) {
  std::vector<MeasuredRow> rows;
  for (const double share : {0.3, 0.6, 0.9, 1.1, 1.5, 2.5}) {
    rows.push_back(measured(1000, 1000 * share, level, truth));
  }
  return rows;
}

StepFit fitted(const std::vector<MeasuredRow>& rows) {
  return fit_steps(rows, carried_by(rows, prior()), prior());
}

}  // namespace

TEST_CASE("a curve of the host has its prices, keeps between neighbours and goes on straight") {
  HostCurve curve;
  CHECK(curve.empty());
  for (const double factor : {2.0, 0.5, 1.0, 4.0, 0.25}) {
    curve.add(factor, priced(900, 1000, factor));
  }
  CHECK(curve.has(0.5));
  CHECK_FALSE(curve.has(0.6));
  for (const double factor : {0.25, 0.5, 1.0, 2.0, 4.0}) {
    CHECK(curve.at(factor).host == Approx(priced(900, 1000, factor).host));
    CHECK(curve.at(factor).total() == Approx(priced(900, 1000, factor).total()));
  }
  // No wait up to 0.5, then one that grows.
  CHECK(curve.at(0.4).host == 0);
  double before = 0;
  for (double factor = 0.5; factor < 4; factor += 0.1) {
    const double wait = curve.at(factor).host;
    CHECK(wait >= before);
    before = wait;
  }
  // All of the host is waited for: 1000 ms more for each unit.
  CHECK(curve.at(6).host == Approx(6000 - 900));
  CHECK(curve.at(0.1).host == 0);
}

TEST_CASE("a host that is twice as fast or slow is found, and what does not wait for it is kept") {
  for (const double truth : {0.5, 1.0, 2.0}) {
    CAPTURE(truth);
    const std::vector<MeasuredRow> rows = steps_of(1.1, truth);
    const StepFit fit = fitted(rows);
    CHECK(std::exp(fit.unknowns[at(Unknown::host)]) == Approx(truth).epsilon(0.1));
    CHECK(std::exp(fit.unknowns[at(Unknown::level)]) == Approx(1.1).epsilon(0.05));
    // Steps that are not among the rows: a factor on the wait would be far off both.
    for (const double share : {0.45, 0.75, 1.3}) {
      const MeasuredRow asked = measured(1000, 1000 * share, 1.1, truth);
      CHECK(asked.scaled_ms(fit.unknowns) == Approx(asked.measured_ms).epsilon(0.04));
    }
  }
}

TEST_CASE("rows that never wait leave the host as it was, as uncertain as before") {
  std::vector<MeasuredRow> rows;
  for (const double gpu : {500.0, 1000.0, 3000.0}) {
    rows.push_back(measured(gpu, 0.1 * gpu, 1.3, 1));
  }
  const std::vector<Unknown> free = carried_by(rows, prior());
  CHECK(std::find(free.begin(), free.end(), Unknown::host) == free.end());
  const StepFit fit = fit_steps(rows, free, prior());
  CHECK(fit.unknowns[at(Unknown::host)] == 0);
  CHECK(fit.covariance[at(Unknown::host)][at(Unknown::host)] == Approx(0.42 * 0.42));
}

TEST_CASE("the gain of the host is the slope of a step by its times") {
  const MeasuredRow row = measured(1000, 2000, 1, 1);
  Unknowns unknowns{};
  unknowns[at(Unknown::level)] = 0.3;
  unknowns[at(Unknown::host)] = std::log(3.0);
  // Between 2 and 4 times nothing bends: 3 x 2000 ms for each unit of the log.
  const StepClasses classes = row.at(unknowns);
  CHECK(*classes.host_gain == Approx(6000).epsilon(0.01));
  CHECK(row.scaled_ms(unknowns) == Approx(std::exp(0.3) * 6000).epsilon(0.01));
  constexpr double step = 1e-3;
  Unknowns more = unknowns, less = unknowns;
  more[at(Unknown::host)] += step;
  less[at(Unknown::host)] -= step;
  CHECK(log_slopes(classes, unknowns)[at(Unknown::host)] ==
        Approx(std::log(row.scaled_ms(more) / row.scaled_ms(less)) / (2 * step)).epsilon(0.001));
}

namespace {

// The band of a step, as train finds the gain of its host: from both sides, a deviation away.
Interval band_of(const MeasuredRow& asked, const StepFit& fit) {
  StepSoftware software = software_of(fit);
  software.prices_host = true;
  software.models = {"model"};
  software.precisions = {"bf16"};
  StepClasses classes = asked.at(fit.unknowns);
  const double host = software.host_factor(), reach = software.host_reach();
  classes.host_gain = (asked.hosts.at(host * std::exp(reach)).total() -
                       asked.hosts.at(host * std::exp(-reach)).total()) /
                      (2 * reach);
  return software.band(classes, {"", "machine", "model", false}, "bf16", 0, 0).widest().log_ratios;
}

bool holds(const MeasuredRow& asked, const StepFit& fit) {
  return band_of(asked, fit).contains(std::log(asked.measured_ms / asked.scaled_ms(fit.unknowns)));
}

}  // namespace

TEST_CASE("steps that are slow alike are not taken for those of a slow host") {
  // The host launches for 0.7 of what the GPU works: from 1.43 times as slow on it is waited for,
  // and 1.8 times make 1.26 of each step. So does a level of 1.25.
  std::vector<MeasuredRow> rows;
  for (const auto& [gpu, share, noise] : {std::array{1000.0, 0.70, 0.02},
                                          {2000.0, 0.71, -0.02},
                                          {1500.0, 0.69, 0.01},
                                          {1300.0, 0.70, -0.01}}) {
    rows.push_back(measured(gpu, share * gpu, 1.25, 1, noise));
  }
  const SoftwarePrior known = named_prior();
  const StepFit fit = fit_steps(rows, {Unknown::level, Unknown::host}, known);
  CHECK(fit.unknowns[at(Unknown::host)] == 0);
  CHECK(std::exp(fit.unknowns[at(Unknown::level)]) == Approx(1.22).epsilon(0.03));
  REQUIRE(fit.rival);
  CHECK(std::exp((*fit.rival)[at(Unknown::host)]) > 1.6);
  CHECK(std::exp((*fit.rival)[at(Unknown::level)]) < 1.1);
  // A step that no host of that speed would hold up: both explanations are in its band.
  const MeasuredRow asked = measured(1000, 350, 1.25, 1);
  CHECK(asked.scaled_ms(fit.unknowns) == Approx(asked.measured_ms).epsilon(0.05));
  CHECK(holds(asked, fit));
  CHECK(holds(measured(1000, 350, 1, 1.8), fit));
  CHECK(holds(measured(1000, 1000, 1, 1.8), fit));
  // Errors of rows left out are of the same fit.
  for (const double off : left_out_errors(rows, {Unknown::level, Unknown::host}, known)) {
    CHECK(std::abs(off) < 0.06);
  }
}

TEST_CASE("a slow host that rows tell apart is found beside a well known level") {
  const std::vector<MeasuredRow> rows = steps_of(1.05, 2);
  const StepFit fit = fit_steps(rows, carried_by(rows, named_prior()), named_prior());
  CHECK(std::exp(fit.unknowns[at(Unknown::host)]) == Approx(2).epsilon(0.1));
  CHECK(std::exp(fit.unknowns[at(Unknown::level)]) == Approx(1.05).epsilon(0.05));
  CHECK_FALSE(fit.rival);
}

TEST_CASE("a host that rows tell well is as uncertain as they scatter, kept at 1 or not") {
  // Half of them wait for all of the host, half for none: the host is the difference of two means
  // of six. Its distribution has tails, as the scatter is not known but to 14 degrees of freedom.
  for (const double level : {1.0, 1.03}) {
    std::vector<MeasuredRow> rows;
    for (int row = 0; row < 12; ++row) {
      const double share = row % 2 == 0 ? 0.2 : 3;
      rows.push_back(measured(1000, 1000 * share, level, 1, row % 4 < 2 ? 0.01 : -0.01));
    }
    for (const SoftwarePrior& known : {prior(), named_prior()}) {
      const StepFit fit = fit_steps(rows, {Unknown::level, Unknown::host}, known);
      const double host = std::sqrt(fit.covariance[at(Unknown::host)][at(Unknown::host)]);
      const double alone = fit.scatter(RowKind::step).deviation / std::sqrt(6);
      CAPTURE(level, host, alone);
      CHECK(host == Approx(std::sqrt(2 * 14.0 / 12) * alone).epsilon(0.12));
    }
  }
}

TEST_CASE("bands of steps that wait for a host of any speed hold nine of ten") {
  constexpr int runs = 300;
  for (const int count : {4, 8}) {
    int inside = 0;
    for (int run = 0; run < runs; ++run) {
      Stream stream({6, Purpose::test_data, static_cast<std::uint32_t>(run), 0, 3});
      const double level = std::exp(0.2 + 0.3 * stream.normal());
      const double truth = std::exp(0.42 * stream.normal());
      const double scatter = prior().scatter[0] * std::sqrt(2 / (2 * stream.gamma(1)));
      const auto drawn = [&] {
        const double gpu = 1000 * std::exp(2 * stream.uniform());
        return measured(gpu, gpu * std::exp(std::log(6) * (stream.uniform() - 0.5)), level, truth,
                        scatter * stream.normal());
      };
      std::vector<MeasuredRow> rows;
      for (int row = 0; row < count; ++row) rows.push_back(drawn());
      const StepFit fit = fitted(rows);
      inside += holds(drawn(), fit);
    }
    CAPTURE(count, inside);
    CHECK(inside > 0.85 * runs);
    CHECK(inside < 0.96 * runs);
  }
}

TEST_CASE("bands hold steps unlike the rows of software that is slow alike, or whose host is") {
  constexpr int runs = 200;
  struct Truth {
    double level, host;
  };
  for (const int count : {4, 8}) {
    for (const Truth truth : {Truth{1.1, 1}, {1.25, 1}, {1.4, 1}, {1, 1.5}, {1, 2}}) {
      int inside = 0;
      std::vector<double> errors;
      for (int run = 0; run < runs; ++run) {
        Stream stream({7, Purpose::test_data, static_cast<std::uint32_t>(run), 0, 3});
        const auto drawn = [&](double least, double most) {
          const double gpu = 1000 * std::exp(2 * stream.uniform());
          const double host = gpu * (least + (most - least) * stream.uniform());
          return measured(gpu, host, truth.level, truth.host, 0.03 * stream.normal());
        };
        std::vector<MeasuredRow> rows;
        for (int row = 0; row < count; ++row) rows.push_back(drawn(0.6, 0.8));
        const StepFit fit = fit_steps(rows, carried_by(rows, named_prior()), named_prior());
        const MeasuredRow asked = drawn(0.3, 1.5);
        inside += holds(asked, fit);
        errors.push_back(std::abs(asked.scaled_ms(fit.unknowns) / asked.measured_ms - 1));
      }
      std::nth_element(errors.begin(), errors.begin() + runs / 2, errors.end());
      CAPTURE(count, truth.level, truth.host, inside, errors[runs / 2]);
      CHECK(inside > 0.85 * runs);
    }
  }
}

TEST_CASE("a document that prices the host says so, and does not scale the wait again") {
  StepSoftware written = software_of(fitted(steps_of(1.2, 2)));
  written.name = "mine";
  written.source = "a test";
  written.machine = "a GPU";
  written.prices_host = true;
  const std::string path = "host_times_test.json";
  write_file_atomically(path, written.text());
  const StepSoftware read = StepSoftware::load("./" + path);
  std::remove(path.c_str());
  CHECK(written.text().find("\"host_times\"") != std::string::npos);
  CHECK(written.text().find("\"host\"") == std::string::npos);
  CHECK(read.text() == written.text());
  CHECK(read.host_factor() == Approx(std::exp(read.unknowns[at(Unknown::host)])));

  training::TrainingStep step;  // priced with that factor
  step.parts[static_cast<std::size_t>(training::TrainingPart::attention)] = 4e5;
  step.parts[static_cast<std::size_t>(training::TrainingPart::host)] = 1e5;
  step.step_us = 5e5;
  step.host_gain_us = 3e5;
  const double level = std::exp(read.unknowns[at(Unknown::level)]);
  const training::TrainingStep scaled = read.applied(step);
  CHECK(scaled.step_us == Approx(level * 5e5));
  CHECK(*scaled.host_gain_us == Approx(level * 3e5));
  const Subject subject{"", "a GPU", "model", false};
  // The band holds the gain, three times the wait.
  StepSoftware of_wait = read;
  const auto latent = [&](const StepClasses& classes) {
    return of_wait.band(classes, subject, "bf16", 0, 0).expected.latent;
  };
  of_wait.covariance = {};
  of_wait.covariance[at(Unknown::host)][at(Unknown::host)] = 0.01;
  CHECK(latent(classes_of(step)) == Approx(0.1 * 3e5 / 5e5));
  of_wait.prices_host = false;
  CHECK(of_wait.host_factor() == 1);
  StepClasses wait = classes_of(step);
  wait.host_gain.reset();
  const double host = std::exp(read.unknowns[at(Unknown::host)]);
  CHECK(latent(wait) == Approx(0.1 * host * 1e5 / (4e5 + host * 1e5)));
}
