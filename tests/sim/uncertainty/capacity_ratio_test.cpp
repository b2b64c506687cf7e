#include "sim/uncertainty/ratios/capacity_ratio.hpp"

#include <cmath>
#include <vector>

#include "sim/training/prices/passes.hpp"
#include "tests/support/catch.hpp"

namespace moesim::uncertainty {
namespace {

using training::TrainingPart;

std::vector<double> step_of(double attention, TrainingPart part, double time) {
  std::vector<double> parts(training::part_names.size(), 0.0);
  parts[static_cast<std::size_t>(TrainingPart::attention)] = attention;
  parts[static_cast<std::size_t>(part)] = time;
  return parts;
}

constexpr double z = 1.6448536269514722;
constexpr double scatter = 0.01;  // of two configurations 0.0002, beside two runs' 2 x 0.02^2

}  // namespace

TEST_CASE("a larger capacity: the curves of experts at two sizes, noise and scatter") {
  // All are products, whose error cancels. Experts are 40 and 25 % of the steps, each a curve's
  // 0.05 off: 0.0025 (0.16 + 0.0625) = 0.00055625; with 0.001 of noise and scatter 0.0394493.
  const auto levels = capacity_ratio_levels(step_of(60, TrainingPart::experts, 40),
                                            step_of(60, TrainingPart::experts, 20), scatter, {});
  REQUIRE(levels.size() == 3);
  CHECK(levels.front().level == 0.9);
  CHECK(levels.front().log_ratios.high == Approx(z * 0.0394493).epsilon(1e-5));
  CHECK(levels.front().log_ratios.low == -levels.front().log_ratios.high);
  CHECK(levels.back().log_ratios.high < levels.front().log_ratios.high);
}

TEST_CASE("exchanges that take NICs are less certain, unless they were measured there") {
  // 20 and 10 % of the steps are dispatch: curves 0.0025 (0.04 + 0.01), products 0.1 x 0.05,
  // exchanges 0.1 x 0.055 inside and 0.1 x 0.20 across.
  const auto reach = [](const StepExchanges& exchanges) {
    return capacity_ratio_levels(step_of(80, TrainingPart::dispatch, 20),
                                 step_of(90, TrainingPart::dispatch, 10), scatter, exchanges)
        .front()
        .log_ratios.high;
  };
  StepExchanges exchanges{1, 1, 8, 64, 8, false};
  CHECK(reach(exchanges) == Approx(z * std::sqrt(0.00118025)).epsilon(1e-9));
  exchanges.experts = 16;
  CHECK(reach(exchanges) == Approx(z * std::sqrt(0.00155)).epsilon(1e-9));
  exchanges.are_measured = true;
  CHECK(reach(exchanges) == Approx(z * std::sqrt(0.00118025)).epsilon(1e-9));
}

TEST_CASE("each exchange takes the NICs that its own group passes") {
  const auto reach = [](TrainingPart part, const StepExchanges& exchanges) {
    return capacity_ratio_levels(step_of(80, part, 20), step_of(90, part, 10), scatter, exchanges)
        .front()
        .log_ratios.high;
  };
  const StepExchanges inside{8, 8, 8, 8, 8, false};
  const StepExchanges context{8, 16, 8, 8, 8, false};
  const StepExchanges gradients{8, 8, 8, 16, 8, false};
  CHECK(reach(TrainingPart::context, context) > reach(TrainingPart::context, inside));
  CHECK(reach(TrainingPart::gradients, context) == reach(TrainingPart::gradients, inside));
  CHECK(reach(TrainingPart::gradients, gradients) > reach(TrainingPart::gradients, inside));
  CHECK(reach(TrainingPart::parameters, gradients) == reach(TrainingPart::gradients, gradients));
  CHECK(reach(TrainingPart::tensor, gradients) == reach(TrainingPart::tensor, inside));
}

TEST_CASE("the host's time is less certain than kernels'") {
  // Products 0.1 x 0.05, the host 0.1 x 0.42.
  const auto levels = capacity_ratio_levels(step_of(80, TrainingPart::host, 20),
                                            step_of(90, TrainingPart::host, 10), scatter, {});
  CHECK(levels.front().log_ratios.high ==
        Approx(z * std::sqrt(0.001 + 0.000025 + 0.001764)).epsilon(1e-9));
}

TEST_CASE("pairs of capacity differ in the choice of experts, not in the layout") {
  CHECK(is_capacity_choice("capacity-factor"));
  CHECK_FALSE(is_capacity_choice("expert-parallel"));
  CHECK_FALSE(is_capacity_choice("capacity-scope"));
  CHECK_FALSE(is_capacity_choice("top-k"));
}

}  // namespace moesim::uncertainty
