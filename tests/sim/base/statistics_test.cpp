#include "sim/base/statistics.hpp"

#include <vector>

#include "tests/support/catch.hpp"

using namespace moesim;

TEST_CASE("quantiles interpolate as numpy's do") {
  // numpy.quantile([3, 1, 4, 1, 5], q): position q (n - 1) among 1 1 3 4 5.
  const std::vector<double> values = {3, 1, 4, 1, 5};
  CHECK(quantile(values, 0) == 1);
  CHECK(quantile(values, 1) == 5);
  CHECK(quantile(values, 0.5) == 3);
  CHECK(quantile(values, 0.05) == Approx(1));
  CHECK(quantile(values, 0.95) == Approx(4.8));
  CHECK(quantile(values, 0.6) == Approx(3.4));
  CHECK(quantile({7}, 0.3) == 7);
}

TEST_CASE("mean and median") {
  CHECK(median({4, 1, 3, 2}) == 2.5);
  CHECK(mean({4, 1, 3, 2}) == 2.5);
  CHECK(median({1, 1, 100}) == 1);
  CHECK(mean({1, 1, 100}) == 34);
}

TEST_CASE("normal quantiles") {
  CHECK(normal_quantile(0.5) == Approx(0).margin(1e-15));
  CHECK(normal_quantile(0.975) == Approx(1.959963985));
  CHECK(normal_quantile(0.05) == Approx(-1.644853627));
}
