#include "sim/base/check_range.hpp"

#include <cmath>

#include "tests/support/catch.hpp"

using namespace moesim;

TEST_CASE("a value outside its range is refused by its name and the range") {
  CHECK_NOTHROW(check_range("jobs", 1, 1, 4096));
  CHECK_NOTHROW(check_range("jobs", 4096, 1, 4096));
  CHECK_THROWS_WITH(check_range("jobs", 0, 1, 4096), "jobs 0: out of range: from 1 to 4096");
  CHECK_THROWS_AS(check_range("jobs", 4097, 1, 4096), UsageError);
  CHECK_THROWS_WITH(check_range("--launch-us", NAN, 0, 1000),
                    "--launch-us nan: out of range: from 0 to 1000");
  CHECK_THROWS_AS(check_range("--launch-us", HUGE_VAL, 0, 1000), UsageError);
}
