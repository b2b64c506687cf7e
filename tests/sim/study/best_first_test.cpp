#include "sim/study/search/best_first.hpp"

#include <algorithm>
#include <numeric>
#include <random>
#include <tuple>

#include "tests/support/catch.hpp"

using namespace moesim::study;

namespace {

struct Problem {
  std::vector<double> values;
  BestFirst search;
  std::vector<std::size_t> taken;

  // Bounds of 0.9 to 1 times the values; the search ends after `wanted`.
  Problem(std::size_t count, std::size_t wanted) {
    std::mt19937 draw(7);
    for (std::size_t at = 0; at < count; ++at) {
      values.push_back(100 + static_cast<double>(draw() % 900));
      search.bounds.push_back(values.back() * (0.9 + 0.0001 * static_cast<double>(draw() % 1000)));
    }
    search.jobs = 2;
    search.value = [this](std::size_t at) { return std::optional(values[at]); };
    search.accept = [this, wanted](std::size_t at, double value) {
      CHECK(value == values[at]);
      taken.push_back(at);
      return taken.size() < wanted;
    };
  }

  std::vector<std::size_t> sorted() const {
    std::vector<std::size_t> order(values.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t one, std::size_t other) {
      return values[one] < values[other];
    });
    return order;
  }
};

}  // namespace

TEST_CASE("candidates come in the order of their values, equal ones by index") {
  Problem problem(2000, 2000);
  const BestFirstCounts counts = run_best_first(problem.search);
  CHECK(problem.taken == problem.sorted());
  CHECK(counts.valued == 2000);
  CHECK(counts.violations == 0);
}

TEST_CASE("the first few need few values, the same for any number of threads") {
  Problem one(2000, 5);
  one.search.jobs = 1;
  Problem two(2000, 5);
  const BestFirstCounts alone = run_best_first(one.search);
  const BestFirstCounts together = run_best_first(two.search);
  std::vector<std::size_t> first = one.sorted();
  first.resize(5);
  CHECK(one.taken == first);
  CHECK(two.taken == first);
  CHECK(alone.valued == together.valued);
  // Values lie evenly in 100 to 1,000, so 11 % of 100 above the first ones: 24 or so.
  CHECK(alone.valued < 100);
}

TEST_CASE("what is out of the question is not taken, and a value below its bound is counted") {
  Problem problem(100, 100);
  problem.search.value = [&](std::size_t at) -> std::optional<double> {
    if (at % 2 == 0) return std::nullopt;
    return problem.values[at];
  };
  problem.search.bounds[1] = problem.values[1] + 1;
  const BestFirstCounts counts = run_best_first(problem.search);
  CHECK(problem.taken.size() == 50);
  CHECK(counts.violations == 1);
}

TEST_CASE("a candidate is valued behind the tightest of its bounds") {
  for (const int jobs : {1, 2}) {
    Problem problem(2000, 5);
    problem.search.jobs = jobs;
    std::fill(problem.search.bounds.begin(), problem.search.bounds.end(), 1);
    std::vector<int> told(2000, 0);
    problem.search.tighter = [&](std::size_t at) -> std::optional<double> {
      if (told[at] == 2) return std::nullopt;
      return (++told[at] == 1 ? 0.5 : 0.99) * problem.values[at];
    };
    const BestFirstCounts counts = run_best_first(problem.search);
    std::vector<std::size_t> first = problem.sorted();
    first.resize(5);
    CHECK(problem.taken == first);
    CHECK(counts.violations == 0);
    CHECK(counts.valued < 50);
    // All of them were told the first bound; the second one costs time too.
    CHECK(std::count(told.begin(), told.end(), 0) == 0);
    CHECK(std::count(told.begin(), told.end(), 2) < 1000);
  }
}

TEST_CASE("behind a stop the values that there are come in order, and quick ones beside them") {
  const bool has_quick = GENERATE(false, true);
  Problem problem(2000, 5);
  std::vector<std::size_t> valued;
  problem.search.jobs = 1;
  problem.search.value = [&](std::size_t at) {
    valued.push_back(at);
    return std::optional(problem.values[at]);
  };
  problem.search.stop = [&] { return valued.size() >= 10; };  // of the 16 of the first batch
  if (has_quick) problem.search.is_quick = [](std::size_t at) { return at % 2 == 0; };
  const BestFirstCounts counts = run_best_first(problem.search);
  CHECK(counts.stopped);
  CHECK(valued.size() == 10 + (has_quick ? BestFirst::most_quick : 0));
  CHECK(counts.valued == valued.size());
  std::sort(valued.begin(), valued.end(), [&](std::size_t one, std::size_t other) {
    return std::tie(problem.values[one], one) < std::tie(problem.values[other], other);
  });
  valued.resize(5);
  CHECK(problem.taken == valued);
  Problem whole(2000, 5);
  CHECK(!run_best_first(whole.search).stopped);
}

TEST_CASE("quick ones behind a stop end where they are given up") {
  Problem problem(2000, 5);
  std::size_t valued = 0;
  problem.search.jobs = 1;
  problem.search.value = [&](std::size_t at) {
    ++valued;
    return std::optional(problem.values[at]);
  };
  problem.search.stop = [] { return true; };
  problem.search.is_quick = [](std::size_t) { return true; };
  problem.search.give_up = [&] { return valued == 3; };
  const BestFirstCounts counts = run_best_first(problem.search);
  CHECK(counts.valued == 3);
  CHECK(valued == 3);
  CHECK(problem.taken.size() == 3);
}

TEST_CASE("a search that is stopped before the first value takes none") {
  Problem problem(100, 5);
  problem.search.stop = [] { return true; };
  CHECK(run_best_first(problem.search).stopped);
  CHECK(problem.taken.empty());
}
