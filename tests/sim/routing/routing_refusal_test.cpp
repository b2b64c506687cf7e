// Refusals whose remedy is another option in a training step than in a scenario.
#include "sim/routing/rules/routing_refusal.hpp"

#include "sim/routing/groups/check_router.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::routing;

TEST_CASE("a refusal names the options of a scenario or of a training step") {
  try {
    check_router(parse_router("group-limited:7:2", 8, 8), 128, 8, 1024);
    FAIL("was taken");
  } catch (const RoutingRefusal& refusal) {
    CHECK_THAT(refusal.what(), ContainsSubstring("or change --experts to 126 or 133"));
    CHECK_THAT(refusal.in_training(),
               ContainsSubstring("or a --model whose experts number 126 or 133"));
  }
}

TEST_CASE("what is the same for both has no options in it") {
  const RoutingRefusal refusal(
      [](const RoutingTerms& terms) { return std::string("tokens ") + terms.per_rank_and_layer; });
  CHECK(std::string(refusal.what()) == "tokens per GPU and layer");
  CHECK(refusal.in_training() == "tokens per rank and layer");
}
