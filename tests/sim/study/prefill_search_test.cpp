#include "sim/study/search/prefill_search.hpp"

#include <fmt/format.h>

#include <atomic>
#include <thread>

#include "sim/base/no_answer.hpp"
#include "sim/study/search/search_stopped.hpp"
#include "tests/support/catch.hpp"

using namespace moesim::study;

namespace {

// One pass that is drawn anew with each of so many seeds; each is given twice.
PrefillSearch search_of_seeds(int seeds) {
  PrefillSearch search;
  for (int at = 0; at < 2 * seeds; ++at) {
    search.scenarios.push_back({{"mode", "prefill"},
                                {"model", "mixtral-8x7b"},
                                {"profile", "h100-sxm"},
                                {"gpus", "16"},
                                {"expert-parallel", "8"},
                                {"sequence-length", "512"},
                                {"router", "dropless"},
                                {"replicas", "1"},
                                {"seed", fmt::format("{}", at / 2)}});
  }
  return search;
}

}  // namespace

TEST_CASE("a prefill search that is stopped in the middle has what it simulated") {
  constexpr int seeds = 12;
  PrefillSearch search = search_of_seeds(seeds);
  std::atomic<bool> is_due{false};
  std::atomic<int> questions{0};  // that were answered with yes
  search.stop = [&] {
    if (is_due) ++questions;
    return is_due.load();
  };
  search.progress = [&](const SweepProgress& done) {
    if (done.done < 3) return;
    is_due = true;
    // The second question comes when the answer to the first is kept.
    while (questions < 2) std::this_thread::yield();
  };
  const PrefillFound found = search_prefill(search);
  CHECK(found.simulated == 3);
  CHECK(found.unfinished == seeds - 3);
  REQUIRE(found.best.size() == 3);
  search.stop = {};
  search.progress = {};
  const PrefillFound whole = search_prefill(search);
  CHECK(whole.simulated == seeds);
  CHECK(whole.unfinished == 0);
  CHECK(whole.best.front().figure("step_ms") <= found.best.front().figure("step_ms"));
}

TEST_CASE("a prefill search that is stopped at once counts scenarios that repeat none") {
  PrefillSearch search = search_of_seeds(5);
  search.stop = [] { return true; };
  std::size_t unfinished = 0;
  try {
    search_prefill(search);
  } catch (const SearchStopped& stopped) {
    unfinished = stopped.unfinished();
  }
  CHECK(unfinished == 5);
}

namespace {

// Scenarios of the second of two seeds have no result but this error.
template <class Thrown>
PrefillSearch search_with(const Thrown& thrown) {
  PrefillSearch search = search_of_seeds(2);
  search.evaluate = [thrown](const moesim::scenario::Scenario& scenario,
                             moesim::routing::RoutingCache& cache) {
    if (scenario.seed == 1) throw thrown;
    return evaluate(scenario, cache);
  };
  return search;
}

}  // namespace

TEST_CASE("a scenario without an answer is left out of a prefill search, with the reason") {
  const auto check = [](const PrefillSearch& search, const std::string& reason) {
    const PrefillFound found = search_prefill(search);
    CHECK(found.simulated == 1);
    CHECK(found.refused == 1);
    CHECK(found.a_refusal == reason);
    CHECK(found.best.size() == 1);
  };
  check(search_with(moesim::NotMeasured("no curve for gemm")), "no curve for gemm");
  check(search_with(moesim::UsageError("too many ranks")), "too many ranks");
}

namespace {

// Expert parallelism and micro-batches of a model of 32 layers.
PrefillSearch search_of_sizes(const std::string& router, const std::string& routing,
                              const std::string& gpus = "8") {
  PrefillSearch search;
  for (const char* expert_parallel : {"1", "2", "4", "8"}) {
    for (const char* micro_batch : {"1", "2", "3"}) {
      search.scenarios.push_back({{"mode", "prefill"},
                                  {"model", "mixtral-8x7b"},
                                  {"profile", "h100-sxm"},
                                  {"gpus", gpus},
                                  {"expert-parallel", expert_parallel},
                                  {"micro-batch", micro_batch},
                                  {"sequence-length", "192"},
                                  {"router", router},
                                  {"routing", routing},
                                  {"replicas", "2"}});
    }
  }
  return search;
}

}  // namespace

TEST_CASE("a prefill search draws the tokens of all groups and micro-batches once") {
  const auto routed_layers = [](const std::string& router) {
    PrefillSearch search = search_of_sizes(router, "gaussian:0.5");
    int layers = 0;
    search.evaluate = [&](const moesim::scenario::Scenario& scenario,
                          moesim::routing::RoutingCache& cache) {
      cache.on_layer([&] { ++layers; });
      return evaluate(scenario, cache);
    };
    CHECK(search_prefill(search).simulated == search.scenarios.size());
    return layers;
  };
  constexpr int of_one = 2 * 32;  // replicas, layers
  CHECK(routed_layers("dropless") == of_one);
  // With a capacity GPUs of a group share slots, and micro-batches have more of them.
  CHECK(routed_layers("top2") == 12 * of_one);
}

TEST_CASE("a scenario has the figures in a prefill search that it has alone") {
  std::size_t compared = 0;
  const auto compare = [&](const PrefillSearch& asked) {
    PrefillSearch search = asked;
    search.evaluate = [&](const moesim::scenario::Scenario& scenario,
                          moesim::routing::RoutingCache& cache) {
      Outcome found = evaluate(scenario, cache);
      moesim::routing::RoutingCache empty;
      CHECK(result_row(scenario, found) == result_row(scenario, evaluate(scenario, empty)));
      ++compared;
      return found;
    };
    search_prefill(search);
  };
  for (const char* routing : {"gaussian:1", "zipf:1.2", "hot-rank:8", "burst:16:0.5"}) {
    compare(search_of_sizes("dropless", routing));
  }
  compare(search_of_sizes("dropless", "unknown", "16"));
  compare(search_of_sizes("top1+fr", "gaussian:1"));
  CHECK(compared > 60);
}

TEST_CASE("an error that is no answer to a scenario ends a prefill search") {
  using Catch::Matchers::Message;
  CHECK_THROWS_MATCHES(search_prefill(search_with(moesim::Error("the disk is full"))),
                       moesim::Error, Message("the disk is full"));
  CHECK_THROWS_MATCHES(search_prefill(search_with(moesim::BrokenDocument("a.json: /nic: 3"))),
                       moesim::BrokenDocument, Message("a.json: /nic: 3"));
}
