#include <cmath>
#include <string>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/measured_rows.hpp"

using namespace moesim;
using namespace moesim::uncertainty;

TEST_CASE("a software document reads back, and scales the parts of a step to its time") {
  Stream stream({4, Purpose::test_data, 0, 0, 0});
  const auto steps = measured(stream, {0.4, 0.1, 0, 5}, 5, 0.05);
  StepSoftware written = known_software(fit_steps(steps, all_of_steps, prior()));
  written.name = "mine";
  written.source = "a test";
  written.machine = "a GPU";
  const std::string path = "step_software_test.json";
  write_file_atomically(path, written.text());
  const StepSoftware read = StepSoftware::load("./" + path);
  std::remove(path.c_str());
  CHECK(read.text() == written.text());

  training::TrainingStep step;
  step.parts[static_cast<std::size_t>(training::TrainingPart::experts)] = 4e5;
  step.parts[static_cast<std::size_t>(training::TrainingPart::dispatch)] = 2e5;
  step.parts[static_cast<std::size_t>(training::TrainingPart::host)] = 1e5;
  step.step_us = 7e5;
  step.tokens_per_second_per_gpu = 1000;
  // With forced balance the experts take half as long: as a step of its own that has these parts.
  training::TrainingStep forced = step;
  forced.parts[static_cast<std::size_t>(training::TrainingPart::experts)] = 2e5;
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

TEST_CASE("exchanges of a kind that was not measured, or of another size, are not scaled") {
  const std::vector<MeasuredRow> rows(3, MeasuredRow{{0, 0, 0, 0, 2, RowKind::exchange}, 3});
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
