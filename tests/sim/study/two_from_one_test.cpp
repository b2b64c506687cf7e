#include "sim/study/validation/exchanges/two_from_one.hpp"

#include <cmath>

#include "sim/profile/moe_exchange_law.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::study;

namespace {

// On two nodes of H100, with links and NICs that take no time.
DispatchSample sample_of(double tokens, double copies) {
  DispatchSample sample;
  sample.device = "NVIDIA H100";
  sample.group = {16, 8};
  sample.load = {tokens, copies, 1, 1, 0};
  sample.row_bytes = 1000;
  sample.sms = 8;
  sample.rates = {1e12, 1e12};
  return sample;
}

profile::StageCost cost_without_errors() {
  profile::StageCost cost;
  cost.fixed_us = 20;
  cost.sm_bytes_per_us = 10e3;  // a copy: 0.1 us of one SM
  cost.link_efficiency = {0.65, 0.6, 0.7};
  return cost;
}

}  // namespace

TEST_CASE("a start across is a chunk of a channel, none of it or twice as much") {
  const AcrossUnknown unknown{2, {20, 12}, 1, 1, false};
  const TwoFromOne law(profile::Dispatcher::load("deepep"), cost_without_errors(), unknown);
  // Half of the fill at 64 tokens. A token has 4 copies, 0.4 us of one SM, 0.2 of two: a chunk of
  // 20 takes 4 us. 256 copies on 8 SMs: 3.2 us.
  const profile::Estimate found = law.predict(sample_of(64, 256));
  CHECK(found.time_us == Approx(20 + 2 + 4 / 2.0 + 3.2));
  CHECK(found.time_us_p05 == Approx(20 + 3.2));
  CHECK(found.time_us_p95 == Approx(20 + 2 * (2 + 4 / 2.0) + 3.2));
}

TEST_CASE("copies and starts that may differ widen the band in squares") {
  const TwoFromOne law(profile::Dispatcher::load("deepep"), cost_without_errors(),
                       {0, {0, 0}, 1.5, 1.2, false});
  const profile::Estimate found = law.predict(sample_of(64, 1600));
  CHECK(found.time_us == Approx(20 + 20));
  const double slow = std::hypot(std::log(50 / 40.0), std::log(44 / 40.0));
  CHECK(std::log(found.time_us_p95 / found.time_us) == Approx(slow));
  const double fast = std::hypot(std::log((20 + 20 / 1.5) / 40), std::log((20 / 1.2 + 20) / 40));
  CHECK(std::log(found.time_us / found.time_us_p05) == Approx(fast));
}
