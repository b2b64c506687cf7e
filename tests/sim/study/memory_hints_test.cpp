#include "sim/study/memory_hints.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>

#include "sim/step/memory.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/scenarios.hpp"

using namespace moesim;
using study::MemoryHint;

namespace {

// Without padding, of which the rows would depend on the routing.
study::Outcome outcome_of(const scenario::Scenario& scenario) {
  study::Outcome outcome;
  outcome.rows = {1024, 4096, 2048, 256};
  outcome.memory_gib = step::memory_footprint(scenario, 0, outcome.rows).total().gib();
  return outcome;
}

scenario::Scenario trained_scenario() {
  scenario::Scenario scenario = support::scenario_of("llama2-7b-moe8", 0);
  scenario.mode = scenario::Mode::train;
  scenario.expert_parallel = 2;
  return scenario;
}

std::vector<std::string> flags_of(const std::vector<MemoryHint>& hints) {
  std::vector<std::string> flags;
  for (const MemoryHint& hint : hints) flags.push_back(hint.option + " " + hint.value);
  return flags;
}

}  // namespace

TEST_CASE("hints are what needs at least 2 % less memory, and say whether it fits") {
  const scenario::Scenario scenario = trained_scenario();
  const study::Outcome outcome = outcome_of(scenario);
  const std::vector<MemoryHint> hints = study::memory_hints(scenario, outcome);
  REQUIRE(!hints.empty());
  for (const MemoryHint& hint : hints) {
    CHECK(hint.need.gib() <= 0.98 * outcome.memory_gib);
    CHECK(hint.fits == (hint.need <= scenario.profile->device().hbm_bytes));
  }
  // 8 experts on 16 GPUs: groups of 4 and 8 hold fewer experts each; ZeRO 1 is the default.
  // more.
  const std::vector<std::string> flags = flags_of(hints);
  const std::set<std::string> known(flags.begin(), flags.end());
  for (const char* flag : {"checkpointing full", "zero 2", "zero 3", "expert-parallel 4",
                           "expert-parallel 8", "micro-batch 2", "micro-batch 1"}) {
    INFO(flag);
    CHECK(known.count(flag) == 1);
  }
  CHECK(known.count("expert-parallel 16") == 0);  // more than there are experts
}

TEST_CASE("a hint needs what the scenario with its option needs") {
  scenario::Scenario scenario = trained_scenario();
  const study::Outcome outcome = outcome_of(scenario);
  const std::vector<MemoryHint> hints = study::memory_hints(scenario, outcome);
  const auto zero = std::find_if(hints.begin(), hints.end(), [](const MemoryHint& hint) {
    return hint.option == "zero" && hint.value == "3";
  });
  REQUIRE(zero != hints.end());
  scenario.zero = 3;
  CHECK(zero->need == step::memory_footprint(scenario, 0, outcome.rows).total());
}

TEST_CASE("a smaller micro-batch keeps the global batch of training") {
  scenario::Scenario scenario = trained_scenario();
  const std::int64_t sequences = scenario::global_batch(scenario);
  const auto batches = [&] {
    std::set<std::optional<std::int64_t>> named;
    for (const MemoryHint& hint : study::memory_hints(scenario, outcome_of(scenario))) {
      if (hint.option == "micro-batch") {
        named.insert(hint.global_batch);
      } else {
        CHECK(!hint.global_batch);
      }
    }
    return named;
  };
  CHECK(batches() == std::set<std::optional<std::int64_t>>{sequences});
  scenario.micro_steps = 4;  // so --global-batch was given
  CHECK(batches() == std::set<std::optional<std::int64_t>>{std::nullopt});
  scenario.micro_steps = 1;
  scenario.mode = scenario::Mode::prefill;  // a pass of its own for each micro-batch
  CHECK(batches() == std::set<std::optional<std::int64_t>>{std::nullopt});
}

TEST_CASE("a smaller micro-batch divides what a GPU trains on in a step") {
  scenario::Scenario scenario = trained_scenario();
  scenario.micro_batch = 7;  // 3 would leave one sequence
  scenario.tokens_per_gpu = 7 * scenario.sequence_length;
  const std::vector<std::string> flags =
      flags_of(study::memory_hints(scenario, outcome_of(scenario)));
  CHECK(std::count(flags.begin(), flags.end(), "micro-batch 3") == 0);
  CHECK(std::count(flags.begin(), flags.end(), "micro-batch 1") == 1);
}

TEST_CASE("inference has no checkpoints and no optimizer to part") {
  scenario::Scenario scenario = trained_scenario();
  scenario.mode = scenario::Mode::prefill;
  for (const MemoryHint& hint : study::memory_hints(scenario, outcome_of(scenario))) {
    CHECK(hint.option != "checkpointing");
    CHECK(hint.option != "zero");
  }
}
