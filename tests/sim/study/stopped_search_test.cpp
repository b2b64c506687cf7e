#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>

#include "sim/study/search/lossless_first.hpp"
#include "sim/study/search/spread_places.hpp"
#include "sim/study/search/training_search.hpp"
#include "tests/sim/study/small_search.hpp"
#include "tests/support/catch.hpp"

using namespace moesim::study;

namespace {

// That ends once stop() was asked so often behind the bounds.
TrainingFound stopped_after(TrainingSearch asked, int questions) {
  auto left = std::make_shared<int>(questions);
  auto is_bounded = std::make_shared<bool>(questions == 0);
  asked.progress = [=](const SearchProgress& done) { *is_bounded |= done.bounded > 1 - 1e-9; };
  asked.stop = [=] { return *is_bounded && (*left)-- <= 0; };
  asked.jobs = 1;
  return search_training(asked);
}

// Drawn at a capacity factor without padding: bounds are far from exact.
TrainingSearch drawn_search() {
  TrainingSearch asked = search_of_four_layers();
  asked.space.expert_tensor = {1};
  asked.space.zero = {1};
  asked.space.recompute.resize(3);
  asked.space.routings.clear();
  for (const char* name : {"topk", "topk+ir"}) {
    asked.space.routings.emplace_back(of_router(name, "1.25"));
    asked.space.routings.back()->router.padding = moesim::routing::Padding::none;
  }
  asked.max_loss = 0.05;
  asked.best = 8;
  return asked;
}

}  // namespace

TEST_CASE("a search that is stopped has the best so far, and bounds what it has not simulated") {
  const bool draws = GENERATE(false, true);
  TrainingSearch asked = draws ? drawn_search() : search();
  if (!draws) asked.best = 60;                      // more than a batch and those that are quick
  asked.drawn = std::make_shared<DrawnRoutings>();  // drawn once for all
  const TrainingFound whole = search_training(asked);
  REQUIRE(!whole.best.empty());
  CHECK(!whole.unproven.has_value());
  bool any_unproven = false;
  bool any_partly_proven = false;
  for (int questions = 1; questions < 10'000; questions += 1 + questions / 2) {
    CAPTURE(questions, draws, whole.counts.simulated, whole.counts.candidates, whole.best.size());
    const TrainingFound found = stopped_after(asked, questions);
    const auto& best = found.best;
    const std::size_t proven = found.unproven ? found.unproven->proven : best.size();
    REQUIRE(proven <= whole.best.size());
    for (std::size_t at = 0; at < proven; ++at) {
      CHECK(best[at].step.step_us == whole.best[at].step.step_us);
    }
    if (!found.unproven) {
      CHECK(best.size() == whole.best.size());
      break;
    }
    any_unproven = true;
    any_partly_proven |= proven > 0;
    CHECK((found.unproven->may_be_faster > 0 || proven == best.size()));
    // The one that is next in a search to the end is no faster than the bound says.
    if (proven < whole.best.size()) {
      CHECK(whole.best[proven].step.step_us >= found.unproven->least_us);
    }
    if (proven < best.size()) {
      CHECK(best[proven].step.step_us >= whole.best[proven].step.step_us);
      CHECK(best[proven].step.step_us > found.unproven->least_us);
      CHECK(best[proven].loss <= asked.max_loss);
    }
  }
  CAPTURE(draws, whole.counts.simulated, whole.counts.candidates, whole.best.size());
  CHECK(any_unproven);
  CHECK((any_partly_proven || !draws));
}

TEST_CASE(
    "routers that drop nothing come first, and are the answer where nothing else is bounded") {
  TrainingSearch asked = search_of_four_layers();
  asked.space.tensor = asked.space.expert_tensor = {1};
  asked.space.recompute.resize(1);
  asked.space.routings = {of_router("topk"), of_router("dropless"), of_router("topk+ir", "1.25")};
  asked.max_loss = 0.05;
  TrainingSearch alone = asked;
  alone.space.routings = {of_router("dropless")};
  const TrainingFound expected = search_training(alone);
  auto is_first = std::make_shared<bool>(true);
  asked.progress = [=](const SearchProgress& done) { *is_first &= done.is_of_lossless; };
  asked.stop = [=] { return !*is_first; };
  const TrainingFound found = search_training(asked);
  REQUIRE(found.best.size() == expected.best.size());
  for (std::size_t at = 0; at < found.best.size(); ++at) {
    CHECK(found.best[at].step.step_us == expected.best[at].step.step_us);
    CHECK(found.best[at].routing == 1);
  }
  REQUIRE(found.unproven.has_value());
  CHECK(found.unproven->proven == 0);
  CHECK(found.unproven->least_us == 0);
  CHECK(found.counts.candidates == 3 * expected.counts.candidates);
  CHECK(found.unproven->may_be_faster == 2 * expected.counts.candidates);
}

TEST_CASE("a search that is stopped among routers that drop has no worse than those that do not") {
  TrainingSearch asked = search_of_four_layers();
  asked.space.tensor = asked.space.expert_tensor = {1};
  asked.space.recompute.resize(1);
  asked.space.routings = {of_router("topk", "0.5"), of_router("dropless")};  // the first is faster
  asked.max_loss = 0.01;
  TrainingSearch alone = asked;
  alone.space.routings = {of_router("dropless")};
  const TrainingFound expected = search_training(alone);
  REQUIRE(expected.best.size() == asked.best);
  for (const int questions : {1, 2, 5, 20}) {
    CAPTURE(questions);
    TrainingSearch stopped = asked;
    auto left = std::make_shared<int>(questions);
    auto is_bounded = std::make_shared<bool>(false);
    stopped.jobs = 1;
    stopped.progress = [=](const SearchProgress& done) {
      *is_bounded |= !done.is_of_lossless && done.bounded > 1 - 1e-9;
    };
    stopped.stop = [=] { return *is_bounded && (*left)-- <= 0; };
    const TrainingFound found = search_training(stopped);
    REQUIRE(found.best.size() == expected.best.size());
    for (std::size_t at = 0; at < found.best.size(); ++at) {
      CHECK(found.best[at].step.step_us == expected.best[at].step.step_us);
      CHECK(found.best[at].routing == 1);
    }
    // Those without drops are known; the others lose too much to count. The front is not complete.
    REQUIRE(found.unproven.has_value());
    CHECK(found.unproven->proven == found.best.size());
    CHECK(found.unproven->may_be_faster == 0);
    CHECK(found.front.back().loss == 0);
    CHECK(!found.smallest.has_value());
  }
}

TEST_CASE("a search that is stopped among losses has a step of those that are drawn") {
  TrainingSearch asked = drawn_search();  // all drop
  const auto stop_after = [&](double share) {
    TrainingSearch stopped = asked;
    stopped.jobs = 1;
    auto bounded = std::make_shared<double>(0);
    stopped.progress = [=](const SearchProgress& done) {
      *bounded = std::max(*bounded, done.bounded);
    };
    stopped.stop = [=] { return *bounded > share; };
    return search_training(stopped);
  };
  const TrainingFound whole = search_training(asked);
  for (const double share : {0.3, 0.5}) {  // losses are from 0.25 to 0.75
    CAPTURE(share);
    const TrainingFound found = stop_after(share);
    REQUIRE(!found.best.empty());
    CHECK(found.best.front().loss <= asked.max_loss);
    CHECK(fits(found.best.front(), asked));
    CHECK(found.best.front().step.step_us >= whole.best.front().step.step_us);
    REQUIRE(found.unproven.has_value());
    CHECK(found.unproven->proven == 0);
    CHECK(found.unproven->least_us == 0);
    CHECK(found.unproven->may_be_faster > 0);
    CHECK(found.unproven->may_be_faster < whole.counts.candidates);
  }
  CHECK_THROWS_AS(stop_after(0.2), SearchStopped);  // none is drawn
}

TEST_CASE("a search for an acceptable step behind a stop says so, and can be given up") {
  TrainingSearch asked = drawn_search();  // no bound is tight before a draw: none is quick
  asked.jobs = 1;
  auto bounded = std::make_shared<double>(0);
  auto any_ending = std::make_shared<bool>(false);
  asked.progress = [=](const SearchProgress& done) {
    *bounded = std::max(*bounded, done.bounded);
    *any_ending |= done.is_ending;
  };
  asked.stop = [=] { return *bounded > 0.5; };
  const TrainingFound found = search_training(asked);
  CHECK(!found.best.empty());
  CHECK(*any_ending);
  *bounded = 0;
  *any_ending = false;
  asked.give_up = [] { return true; };
  const TrainingFound given_up = search_training(asked);
  CHECK(given_up.best.empty());
  CHECK(given_up.counts.simulated == 0);
  CHECK(!*any_ending);
  REQUIRE(given_up.unproven.has_value());
  CHECK(given_up.unproven->may_be_faster >= found.unproven->may_be_faster);
}

TEST_CASE("losses of routers that are too slow in any case are not drawn") {
  TrainingSearch asked = search_of_four_layers();
  asked.space.tensor = asked.space.expert_tensor = {1};
  asked.space.recompute.resize(1);
  asked.space.routings = {of_router("dropless"),
                          of_router("topk", "4")};  // blocks of 4 times the rows
  asked.max_loss = 1;
  asked.twin_margin = 0;
  const TrainingFound found = search_training(asked);
  const std::optional<TrainingFound> lossless = search_lossless(asked);
  REQUIRE(lossless.has_value());
  REQUIRE(lossless->best.size() == asked.best);
  CHECK(lossless_limit_us(asked, lossless) ==
        Approx(lossless->best.back().step.step_us).epsilon(2e-6));
  for (std::size_t at = 0; at < found.best.size(); ++at) {
    CHECK(found.best[at].step.step_us == lossless->best[at].step.step_us);
  }
  asked.best = 1000;  // more than there are: no limit
  CHECK(std::isinf(lossless_limit_us(asked, lossless)));
  asked.space.routings.resize(1);
  CHECK(!search_lossless(asked).has_value());
}

TEST_CASE("a search that is stopped at once has nothing") {
  CHECK_THROWS_AS(stopped_after(search(), 0), SearchStopped);
  TrainingSearch all = search();
  all.stop = [] { return true; };
  CHECK_THROWS_AS(simulate_all(all), SearchStopped);
}

TEST_CASE("candidates that were simulated before a stop are kept") {
  TrainingSearch asked = search();
  const AllSteps whole = simulate_all(asked);
  REQUIRE(whole.unfinished == 0);
  const std::size_t count = whole.steps.size() + whole.left_out;
  constexpr std::size_t before = 3;
  std::size_t questions = 0;
  asked.jobs = 1;
  asked.stop = [&] { return questions++ >= before; };
  const AllSteps some = simulate_all(asked);
  CHECK(some.steps.size() + some.left_out == before);
  CHECK(some.unfinished == count - before);
  REQUIRE(!some.steps.empty());
  for (std::size_t at = 0; at < some.steps.size(); ++at) {
    CHECK(some.steps[at].step.step_us == whole.steps[at].step.step_us);
  }
}

TEST_CASE("spread places are dense at first, and reach towards the end") {
  CHECK(spread_places(0).empty());
  CHECK(spread_places(3) == std::vector<std::size_t>{0, 1, 2});
  CHECK(spread_places(20) == std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 18});
}

TEST_CASE("progress has the best so far and how many may be faster") {
  TrainingSearch asked = drawn_search();
  SearchProgress last;
  asked.progress = [&](const SearchProgress& done) {
    if (done.simulated == 0) {
      // Once all are bounded, progress is told every 100 ms at most, and this search may take less.
      if (done.bounded == 1) std::this_thread::sleep_for(std::chrono::milliseconds(110));
      return;
    }
    if (last.tokens_per_second_per_gpu > 0) {
      CHECK(done.tokens_per_second_per_gpu >= last.tokens_per_second_per_gpu);
      CHECK(done.may_be_faster <= last.may_be_faster);
    }
    CHECK(done.found >= last.found);
    last = done;
  };
  const TrainingFound found = search_training(asked);
  CHECK(last.simulated > 0);
  CHECK(last.tokens_per_second_per_gpu <= found.best.front().step.tokens_per_second_per_gpu);
}
