#include "sim/routing/counts/draw_cache.hpp"

#include <cstdint>
#include <vector>

#include "tests/support/catch.hpp"

using moesim::routing::PackedCounts;

TEST_CASE("packed counts are the same counts, in as few bytes as the largest takes") {
  struct Case {
    std::vector<std::int32_t> counts;
    std::size_t width;  // bytes of a count
  };
  const std::vector<Case> cases = {{{}, 1},         {{0, 1, 255}, 1},       {{256, 0, 3}, 2},
                                   {{65535, 7}, 2}, {{65536, 65535, 0}, 4}, {{0, 2147483647}, 4}};
  for (const Case& each : cases) {
    const PackedCounts packed(each.counts);
    CHECK(packed.counts() == each.counts);
    CHECK(packed.bytes() == each.width * each.counts.size());
  }
}
