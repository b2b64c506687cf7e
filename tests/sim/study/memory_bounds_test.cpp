#include "sim/study/search/memory_bounds.hpp"

#include "sim/study/search/balanced_job.hpp"
#include "sim/training/step/step_bound.hpp"
#include "tests/sim/study/small_search.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::study;

namespace {

// Layouts of several routers, some of which hold as many rows.
std::vector<TrainingFamily> families() {
  TrainingSearch asked = search();
  asked.space.routings = {std::nullopt};
  for (const char* factor : {"1.5", "0.5", "1"}) {
    asked.space.routings.emplace_back(of_router("topk", factor));
    asked.space.routings.emplace_back(of_router("topk+ir", factor));
  }
  asked.space.routings.emplace_back(of_router("dropless"));
  training::DrawnRouting fewer = of_router("topk");
  fewer.router.top_k = 4;
  asked.space.routings.emplace_back(fewer);
  return candidates_of(asked.space).families;
}

}  // namespace

TEST_CASE("memory bounds of families are those of each job, or say that it is too large") {
  const std::vector<TrainingFamily> all = families();
  const bool some_fit = GENERATE(true, false);
  const double room = some_fit ? 60.0 * (1 << 30) : 1;
  const std::vector<std::vector<Bytes>> bounds = memory_bounds(all, room, 2);
  REQUIRE(bounds.size() == all.size());
  std::size_t fitting = 0, shared = 0;
  for (std::size_t family = 0; family < all.size(); ++family) {
    REQUIRE(bounds[family].size() == all[family].size());
    for (std::size_t job = 0; job < all[family].size(); ++job) {
      const Bytes own = training::memory_bound(BalancedJob(all[family].job(job)).job);
      const Bytes found = bounds[family][job];
      if (!some_fit || static_cast<double>(own.count) <= room) {
        CHECK(found == own);
        ++fitting;
      } else {
        CHECK(static_cast<double>(found.count) > room);
        CHECK(found <= own);
        shared += found < own ? 1 : 0;
      }
    }
  }
  CHECK(fitting > 100);
  CHECK((shared > 100 || !some_fit));
}
