#include "sim/study/validation/exchanges/validate_far_dispatches.hpp"

#include <cmath>

#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::study;

namespace {

FarCase ten_errors(double octaves, double largest) {
  FarCase found{octaves, {}};
  for (int place = 1; place <= 10; ++place) {
    const double error = largest * place / 10 * (place % 2 == 0 ? 1 : -1);
    found.points.push_back({"x", error, {-0.05, 0.05}});
  }
  return found;
}

}  // namespace

TEST_CASE("errors grow by what holds nine of ten points") {
  // The ninth of ten errors is 0.27 at one factor of two, 0.54 at four: hypot(0.05, g root(d)).
  const double growth = std::sqrt(0.27 * 0.27 - 0.05 * 0.05);
  CHECK(error_growth({ten_errors(1, 0.3)}) == Approx(growth).epsilon(1e-6));
  CHECK(error_growth({ten_errors(4, 0.3)}) == Approx(growth / 2).epsilon(1e-6));
  CHECK(error_growth({ten_errors(1, 0.05)}) == 0);
}

TEST_CASE("each left-out value weighs the same, however many points it has") {
  FarCase many = ten_errors(1, 0.05);  // all inside
  for (int copy = 0; copy < 5; ++copy) {
    const std::vector<BandPoint> points = many.points;
    many.points.insert(many.points.end(), points.begin(), points.end());
  }
  // Nine tenths of both: eight of the ten of the other.
  CHECK(error_growth({many, ten_errors(1, 0.3)}) ==
        Approx(std::sqrt(0.24 * 0.24 - 0.05 * 0.05)).epsilon(1e-6));
}
