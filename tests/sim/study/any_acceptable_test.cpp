#include "sim/study/search/any_acceptable.hpp"

#include "tests/support/catch.hpp"

using namespace moesim::study;

namespace {

// `families` of three candidates each; the one with the greatest number has the least bounds, of
// which the least is that of its last candidate.
struct Problem {
  explicit Problem(std::uint32_t families) {
    for (std::uint32_t family = 0; family < families; ++family) {
      const double bound_us = 10.0 * (families - family);
      for (const double more_us : {7, 8, -4}) {
        search.candidates.push_back({family, bound_us + more_us});
      }
    }
    search.may_fit = [this](std::size_t at) {
      tightened.push_back(at);
      return true;
    };
    search.is_acceptable = [this](std::size_t at) {
      simulated.push_back(at);
      return false;
    };
  }
  AnyAcceptable search;
  std::vector<std::size_t> tightened, simulated;
};

}  // namespace

TEST_CASE(
    "the first acceptable candidate is sought family by family, those of least bounds first") {
  Problem problem(3);
  problem.search.candidates[1].bound_us = 1;  // less than all of the other families
  CHECK(find_acceptable(problem.search) == 9);
  CHECK(problem.simulated == std::vector<std::size_t>{0, 1, 2, 6, 7, 8, 3, 4, 5});
  problem.simulated.clear();
  problem.search.is_acceptable = [&](std::size_t at) {
    problem.simulated.push_back(at);
    return at == 6;
  };
  CHECK(find_acceptable(problem.search) == 4);
  CHECK(problem.simulated.back() == 6);
}

TEST_CASE("a search for an acceptable candidate has an end") {
  Problem problem(1000);
  int left = 5;
  SECTION("after so many simulations") {
    CHECK(find_acceptable(problem.search) < AnyAcceptable::most);  // of few families
    problem.search.candidates.assign(1000, {});
    CHECK(find_acceptable(problem.search) == AnyAcceptable::most);
  }
  SECTION("where it is given up between two simulations") {
    problem.search.give_up = [&] { return left-- == 0; };
    CHECK(find_acceptable(problem.search) == 5);
    CHECK(problem.simulated.size() == 5);
  }
  SECTION("where it is given up among candidates that do not fit") {
    problem.search.give_up = [&] { return left-- == 0; };
    problem.search.may_fit = [&](std::size_t at) {
      problem.tightened.push_back(at);
      return false;
    };
    CHECK(find_acceptable(problem.search) == 0);
    CHECK(problem.tightened.size() == 5);
    CHECK(problem.simulated.empty());
  }
}
