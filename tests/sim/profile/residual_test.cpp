#include "sim/profile/residual.hpp"

#include <string>

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::profile;

namespace {

Residual parse(const std::string& regions) {
  return Residual(Document::parse(R"({"by": "time_us", "median_abs": 0.1, "p90_abs": 0.3,
      "method": "test", "regions": )" +
                                      regions + "}",
                                  "x.json")
                      .root());
}

const char* const two_regions = R"([
  {"region": "<10us", "from": 0, "below": 10, "n": 5, "median_abs": 0.2, "p90_abs": 0.4,
   "q05": -0.5, "q95": 0.6},
  {"region": ">10us", "from": 10, "below": null, "n": 5, "median_abs": 0.1, "p90_abs": 0.2,
   "q05": -0.1, "q95": 0.2}])";

}  // namespace

TEST_CASE("the error bar is that of the region of the query") {
  const Residual residual = parse(two_regions);
  Estimate estimate;
  residual.apply(4, 4, 1, estimate);
  CHECK(estimate.time_us == 4);
  CHECK(estimate.time_us_p05 == Approx(2));
  CHECK(estimate.time_us_p95 == Approx(6.4));
  residual.apply(10, 10, 1, estimate);
  CHECK(estimate.time_us_p05 == Approx(9));
  CHECK(estimate.time_us_p95 == Approx(12));
}

TEST_CASE("the error bar grows with the distance, and never reaches zero") {
  const Residual residual = parse(two_regions);
  CHECK(widening(0) == 1);
  CHECK(widening(-3) == 1);
  CHECK(widening(2) == 2);
  Estimate near;
  Estimate far;
  residual.apply(100, 100, widening(0), near);
  residual.apply(100, 100, widening(20), far);
  CHECK(far.time_us_p05 < near.time_us_p05);
  CHECK(far.time_us_p05 > 0);
  CHECK(far.time_us_p95 > near.time_us_p95);
}

TEST_CASE("a one-sided error still encloses the prediction") {
  const Residual residual = parse(R"([{"region": "all", "from": 0, "below": null, "n": 5,
      "median_abs": 0.1, "p90_abs": 0.2, "q05": 0.05, "q95": 0.2}])");
  Estimate estimate;
  residual.apply(10, 10, 1, estimate);
  CHECK(estimate.time_us_p05 == 10);
  CHECK(estimate.time_us_p95 == Approx(12));
}

TEST_CASE("residuals that are none are refused by key") {
  CHECK_THROWS_WITH(parse("[]"), ContainsSubstring("/regions"));
  CHECK_THROWS_WITH(parse(R"([{"region": "all", "below": null, "median_abs": 0.1, "p90_abs": 0.2,
      "q05": 0.3, "q95": 0.2}])"),
                    ContainsSubstring("/regions/0/q05"));
  CHECK_THROWS_WITH(parse(R"([{"region": "a", "below": 5, "median_abs": 0.1, "p90_abs": 0.2,
      "q05": 0, "q95": 0.2}, {"region": "b", "below": 5, "median_abs": 0.1, "p90_abs": 0.2,
      "q05": 0, "q95": 0.2}])"),
                    ContainsSubstring("/regions/1/below"));
}

TEST_CASE("an estimate says where it comes from") {
  Estimate estimate;
  estimate.origin = Origin::published;
  estimate.support = Support::interpolated;
  CHECK(describe(estimate) == "published, interpolated");
  estimate.origin = Origin::derived;
  estimate.support = Support::extrapolated;
  CHECK(describe(estimate) == "derived, extrapolated");
}
