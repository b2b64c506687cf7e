#include "sim/uncertainty/ratios/link_ratio.hpp"

#include <cmath>
#include <vector>

#include "sim/training/prices/passes.hpp"
#include "tests/support/catch.hpp"

namespace moesim::uncertainty {
namespace {

using training::TrainingPart;

// 64 ranks in domains of 8, experts on 16.
StepExchanges exchanges(bool are_measured) { return {1, 1, 16, 64, 8, are_measured}; }

std::vector<double> step_of(double attention, double dispatch, double tensor, double host) {
  std::vector<double> parts(training::part_names.size(), 0.0);
  parts[static_cast<std::size_t>(TrainingPart::attention)] = attention;
  parts[static_cast<std::size_t>(TrainingPart::dispatch)] = dispatch;
  parts[static_cast<std::size_t>(TrainingPart::tensor)] = tensor;
  parts[static_cast<std::size_t>(TrainingPart::host)] = host;
  return parts;
}

}  // namespace

TEST_CASE("two clusters of one GPU: both shares of NICs, the difference of all else") {
  // Dispatch is 0.3 and 0.5 of the steps, by the law off by 0.20 on each; tensor exchanges 0.2 and
  // 0.2, which cancel; attention 0.4 and 0.3 (0.05), the host 0.1 and 0 (0.42).
  const LinkedStep one{step_of(40, 30, 20, 10), exchanges(false)};
  const LinkedStep other{step_of(30, 50, 20, 0), exchanges(false)};
  const double same_domains = std::sqrt(0.04 * (0.09 + 0.25) + 0.005 * 0.005 + 0.042 * 0.042);
  CHECK(link_deviation(one, other, false) == Approx(same_domains).epsilon(1e-9));
  CHECK(link_deviation(other, one, false) == Approx(same_domains).epsilon(1e-9));
  // In domains with other links 0.055 of 0.2 count twice.
  CHECK(link_deviation(one, other, true) ==
        Approx(std::hypot(same_domains, 0.011 * std::sqrt(2.0))).epsilon(1e-9));
  // Measured between the domains of one: 0.055 of its 0.3.
  const LinkedStep measured{one.parts, exchanges(true)};
  CHECK(link_deviation(measured, other, false) ==
        Approx(std::sqrt(0.0165 * 0.0165 + 0.01 + 0.000025 + 0.001764)).epsilon(1e-9));
}

TEST_CASE("the same step on two clusters whose links it does not use has the noise of two runs") {
  const LinkedStep step{step_of(80, 0, 20, 0), exchanges(false)};
  CHECK(link_deviation(step, step, false) == 0);
  const auto levels = link_ratio_levels(0);
  REQUIRE(levels.size() == usual_levels().size());
  CHECK(levels.front().level == 0.9);
  CHECK(levels.front().log_ratios.high == Approx(1.6448536 * 0.02 * std::sqrt(2.0)).epsilon(1e-6));
  CHECK(levels.front().log_ratios.low == -levels.front().log_ratios.high);
}

TEST_CASE("a normal term more adds to levels in squares") {
  std::vector<BandLevel> levels = {{0.9, {-0.3, 0.4}}};
  widen_levels(0.1, levels);
  CHECK(levels[0].log_ratios.low == Approx(-std::hypot(0.3, 0.16448536)).epsilon(1e-6));
  CHECK(levels[0].log_ratios.high == Approx(std::hypot(0.4, 0.16448536)).epsilon(1e-6));
}

}  // namespace moesim::uncertainty
