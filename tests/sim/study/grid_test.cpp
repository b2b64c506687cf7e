#include "sim/study/sweep/grid.hpp"

#include "sim/base/error.hpp"
#include "sim/scenario/options.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;

namespace {

using Texts = std::vector<std::string>;

Texts expanded(const std::string& name, const std::string& text) {
  return study::expand(scenario::option_named(name), text);
}

}  // namespace

TEST_CASE("ranges are inclusive and exact") {
  CHECK(expanded("capacity-factor", "0.5:2:0.5") == Texts{"0.5", "1", "1.5", "2"});
  CHECK(expanded("capacity-factor", "0.1:0.3:0.1") == Texts{"0.1", "0.2", "0.3"});  // doubles: 2
  CHECK(expanded("capacity-factor", "1:2:0.4,3") == Texts{"1", "1.4", "1.8", "3"});
  CHECK(expanded("gpus", "8:32:8") == Texts{"8", "16", "24", "32"});
  CHECK(expanded("seed", "123456789012345") == Texts{"123456789012345"});
}

TEST_CASE("a colon in a text is no range") {
  CHECK(expanded("routing", "gaussian:0.1,zipf:1.2") == Texts{"gaussian:0.1", "zipf:1.2"});
}

TEST_CASE("malformed lists are refused by flag") {
  CHECK_THROWS_WITH(expanded("gpus", "8,,16"),
                    ContainsSubstring("--gpus: '8,,16' has an empty item"));
  CHECK_THROWS_WITH(expanded("gpus", ":8:16:8"), ContainsSubstring("--gpus"));
  CHECK_THROWS_AS(expanded("capacity-factor", "2:1:0.5"), UsageError);
  CHECK_THROWS_AS(expanded("capacity-factor", "1:2:0"), UsageError);
  CHECK_THROWS_AS(expanded("capacity-factor", "1:2"), UsageError);
  CHECK_THROWS_AS(expanded("capacity-factor", "-1:2:1"), UsageError);
}

TEST_CASE("the first option of the table varies slowest, however they were typed") {
  const auto points = study::grid({{"capacity-factor", "1,2"}, {"router", "top1,top2"}});
  Texts order;
  for (const scenario::OptionValues& point : points) {
    order.push_back(point.at("router") + " " + point.at("capacity-factor"));
  }
  CHECK(order == Texts{"top1 1", "top1 2", "top2 1", "top2 2"});
}

TEST_CASE("no lists are one scenario") {
  CHECK(study::grid({}).size() == 1);
  CHECK(study::grid({{"gpus", "8"}}) == std::vector<scenario::OptionValues>{{{"gpus", "8"}}});
}

TEST_CASE("a grid beyond reason is refused before it is built") {
  const std::string thousands = "1:20000:1";
  CHECK_THROWS_WITH(study::grid({{"gpus", thousands}, {"seed", thousands}}),
                    ContainsSubstring("more than 1000000 scenarios"));
}
