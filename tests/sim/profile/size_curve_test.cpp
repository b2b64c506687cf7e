#include "sim/profile/size_curve.hpp"

#include <string>

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using profile::SizeCurve;

namespace {

SizeCurve parse(const std::string& text) {
  return SizeCurve(Document::parse(text, "x.json").root());
}

}  // namespace

TEST_CASE("a size curve is straight between knots, flat below and as steep as its end beyond") {
  const SizeCurve curve = parse(R"({"bytes": [100, 200, 400], "time_us": [5, 5, 9]})");
  CHECK(curve.time_us(1) == 5);
  CHECK(curve.time_us(100) == 5);
  CHECK(curve.time_us(150) == 5);
  CHECK(curve.time_us(200) == 5);
  // 4 us for 200 bytes: 0.02 us per byte.
  CHECK(curve.time_us(300) == Approx(7));
  CHECK(curve.time_us(400) == Approx(9));
  CHECK(curve.time_us(1400) == Approx(29));
  CHECK(curve.smallest() == 100);
  CHECK(curve.largest() == 400);
}

TEST_CASE("a size curve that is none is refused by key") {
  const auto refuses = [](const std::string& text, const std::string& key) {
    INFO(text);
    CHECK_THROWS_WITH(parse(text), ContainsSubstring("x.json") && ContainsSubstring(key));
  };
  refuses(R"({"time_us": [1, 2]})", "bytes");
  refuses(R"({"bytes": [1, 2]})", "time_us");
  refuses(R"({"bytes": [1], "time_us": [1]})", "bytes");
  refuses(R"({"bytes": [1, 2], "time_us": [1]})", "time_us");
  refuses(R"({"bytes": [2, 1], "time_us": [1, 2]})", "bytes");
  refuses(R"({"bytes": [0, 1], "time_us": [1, 2]})", "bytes");
  refuses(R"({"bytes": [1, 2], "time_us": [2, 1]})", "time_us");
  refuses(R"({"bytes": [1, 2], "time_us": [0, 1]})", "time_us");
  refuses(R"({"bytes": [1, 2], "time_us": [2, 2]})", "time_us");
  refuses(R"({"bytes": [1, "2"], "time_us": [2, 3]})", "bytes/1");
}

TEST_CASE("knots at hand make the same curve, or are refused") {
  CHECK(SizeCurve({100, 200}, {5, 9}).time_us(150) == Approx(7));
  CHECK_THROWS_AS(SizeCurve({100}, {5}), Error);
  CHECK_THROWS_AS(SizeCurve({100, 200}, {5}), Error);
  CHECK_THROWS_AS(SizeCurve({200, 100}, {5, 9}), Error);
  CHECK_THROWS_AS(SizeCurve({100, 200, 300}, {5, 9, 9}), Error);
}
