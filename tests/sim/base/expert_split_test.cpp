#include "sim/base/expert_split.hpp"

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;

TEST_CASE("experts divide evenly over ranks, or the message lists what would do") {
  CHECK_NOTHROW(check_experts_divide(16, 8, 32));
  CHECK_THROWS_WITH(check_experts_divide(16, 3, 8), ContainsSubstring("use one of 1, 2, 4, 8"));
  CHECK_THROWS_AS(check_experts_divide(16, 0, 8), UsageError);
  // Groups must divide the GPUs too.
  CHECK_THROWS_WITH(check_experts_divide(60, 8, 16), ContainsSubstring("use one of 1, 2, 4"));
  CHECK_THROWS_WITH(check_experts_divide(9, 8, 16), Catch::Matchers::EndsWith("use 1"));
  CHECK(divisors(12, 5) == "1, 2, 3, 4");
}
