#include <set>

#include "sim/job/job_options.hpp"
#include "sim/uncertainty/ratios/capacity_ratio.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;

TEST_CASE("what chooses the experts of a token is what pairs of one capacity may differ in") {
  // Another amount of work, another place of it, or other blocks than those of measured pairs.
  const std::set<std::string> other = {
      "top-k",       "capacity-scope",   "padding", "rank-capacity", "expert-placement",
      "expert-load", "redundant-experts"};
  for (const job::JobOption& option : job::job_options()) {
    CAPTURE(option.name);  // of a router: `choices` in capacity_ratio.cpp
    const bool routes = option.section == job::Section::routing && !other.contains(option.name);
    CHECK(uncertainty::is_capacity_choice(option.name) == routes);
  }
}
