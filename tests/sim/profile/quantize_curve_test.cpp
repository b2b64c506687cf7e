#include "sim/profile/kernels/quantize_curve.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using profile::QuantizeCurve;
using profile::Support;

namespace {

// Up to 16 rows of 16 elements: 1 us in the corner, a factor of e for each factor of 16.
nlohmann::json small_curve() {
  return nlohmann::json::parse(R"({
    "surface": {"x": "log2_m", "y": "log2_k", "x_knots": [0, 4], "y_knots": [0, 4],
                "values": [0, 1, 1, 2]},
    "valid": {"m": [1, 16], "k": [1, 16]}, "origin": "published",
    "residual": {"by": "time_us", "median_abs": 0.05, "p90_abs": 0.1, "method": "made up",
                 "regions": [{"region": "all", "from": 0, "below": null, "n": 100,
                              "median_abs": 0.05, "p90_abs": 0.1, "q05": -0.1, "q95": 0.2}]}})");
}

QuantizeCurve read(const nlohmann::json& curve) {
  return QuantizeCurve(Document::parse(curve.dump(), "curve.json").root());
}

}  // namespace

TEST_CASE("a cast takes what its surface says, beyond it by elements") {
  const QuantizeCurve curve = read(small_curve());
  CHECK(curve.estimate(1, 1).time_us == Approx(1));
  CHECK(curve.estimate(16, 1).time_us == Approx(std::exp(1)));
  CHECK(curve.estimate(4, 4).time_us == Approx(std::exp(0.5 + 0.5)));
  CHECK(curve.estimate(16, 16).support == Support::interpolated);
  // Three times the rows and twice their length.
  const auto far = curve.estimate(48, 32);
  CHECK(far.time_us == Approx(6 * std::exp(2)));
  CHECK(far.support == Support::extrapolated);
  CHECK(far.time_us_p95 / far.time_us > 1.2);
  CHECK_THROWS_AS(curve.estimate(0, 4), UsageError);
  CHECK_THROWS_AS(curve.estimate(4, -1), UsageError);
}

TEST_CASE("a surface without a value per pair of knots is refused") {
  nlohmann::json curve = small_curve();
  curve["surface"]["values"] = {0, 1, 1};
  CHECK_THROWS_WITH(read(curve), ContainsSubstring("values"));
}
