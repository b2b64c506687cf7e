#include "sim/base/parallel.hpp"

#include <sched.h>

#include <atomic>
#include <stdexcept>
#include <vector>

#include "tests/support/catch.hpp"

using namespace moesim;

TEST_CASE("cores are those that the process may use") {
  cpu_set_t all;
  REQUIRE(sched_getaffinity(0, sizeof all, &all) == 0);
  CHECK(core_count() == CPU_COUNT(&all));
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(core_count() == 1);
  REQUIRE(sched_setaffinity(0, sizeof all, &all) == 0);
}

TEST_CASE("every index is worked on once, by any number of threads") {
  for (const int threads : {-1, 1, 2, 7}) {
    std::vector<std::atomic<int>> calls(100);
    parallel_for(calls.size(), threads, [&](std::size_t index) { ++calls[index]; });
    for (const std::atomic<int>& count : calls) CHECK(count == 1);
  }
  parallel_for(0, 4, [](std::size_t) { throw std::runtime_error("called"); });
}

TEST_CASE("a failure ends the work and comes back to the caller") {
  std::atomic<int> calls{0};
  const auto work = [&](std::size_t index) {
    ++calls;
    if (index == 3) throw std::runtime_error("index 3");
  };
  CHECK_THROWS_WITH(parallel_for(1000000, 1, work), "index 3");
  CHECK(calls == 4);
  CHECK_THROWS_WITH(parallel_for(1000000, 4, work), "index 3");
}

// Index 1 fails at once, index 0 only when it has.
TEST_CASE("of several failures that of the smallest index comes back") {
  std::atomic<bool> has_failed{false};
  const auto work = [&](std::size_t index) {
    if (index == 0) has_failed.wait(false);
    has_failed = true;
    has_failed.notify_all();
    throw std::runtime_error(index == 0 ? "index 0" : "index 1");
  };
  CHECK_THROWS_WITH(parallel_for(2, 2, work), "index 0");
}
