#include "sim/study/memory_hints.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <set>
#include <utility>

#include "sim/step/memory.hpp"

namespace moesim::study {
namespace {

struct Change {
  std::string option;
  std::string value;
  std::optional<std::int64_t> global_batch;
  scenario::Scenario scenario;
};

std::vector<Change> changes_of(const scenario::Scenario& scenario) {
  std::vector<Change> changes;
  const auto propose = [&](const char* option, std::string value) -> scenario::Scenario& {
    changes.push_back({option, std::move(value), std::nullopt, scenario});
    return changes.back().scenario;
  };
  const bool train = scenario.mode == scenario::Mode::train;
  if (train && scenario.checkpointing == scenario::Checkpointing::none) {
    propose("checkpointing", "full").checkpointing = scenario::Checkpointing::full;
  }
  for (int zero = scenario.zero + 1; train && zero <= 3; ++zero) {
    propose("zero", std::to_string(zero)).zero = zero;
  }
  for (int size = 2 * scenario.expert_parallel;
       scenario.has_moe() && size <= std::min(scenario.gpus, scenario.experts); size *= 2) {
    if (scenario.gpus % size != 0 || scenario.experts % size != 0) continue;
    propose("expert-parallel", std::to_string(size)).expert_parallel = size;
  }
  const std::int64_t sequences = scenario.micro_batch * scenario.micro_steps;  // of a GPU and step
  for (std::int64_t batch = scenario.micro_batch / 2; batch > 0; batch /= 2) {
    if (train && sequences % batch != 0) continue;  // no whole number of micro-steps
    scenario::Scenario& smaller = propose("micro-batch", std::to_string(batch));
    smaller.micro_batch = batch;
    smaller.tokens_per_gpu = batch * smaller.sequence_length;
    if (train) smaller.micro_steps = sequences / batch;
    // With more than one micro-step the global batch was given, and holds for the change too.
    if (train && scenario.micro_steps == 1) changes.back().global_batch = global_batch(scenario);
  }
  return changes;
}

// Whether the second option stands behind the first in the order of changes_of().
bool follows(const std::string& first, const std::string& second) {
  static constexpr const char* order[] = {"checkpointing", "zero", "expert-parallel",
                                          "micro-batch"};
  const auto place = [&](const std::string& name) {
    return std::find(std::begin(order), std::end(order), name);
  };
  return place(first) < place(second);
}

}  // namespace

std::vector<MemoryHint> memory_hints(const scenario::Scenario& scenario, const Outcome& outcome) {
  // Fewer tokens are routed to as many rows each.
  const auto rows_of = [&](std::int64_t tokens) {
    const auto share = [&](std::int64_t rows) { return rows * tokens / scenario.tokens_per_gpu; };
    return model::ExchangeRows{share(outcome.rows.mean), share(outcome.rows.most),
                               share(outcome.rows.sent), share(outcome.rows.block)};
  };
  const auto hint_of = [&](const Change& change, std::string before) {
    const Bytes need = step::memory_footprint(change.scenario, outcome.ir_rows_mean,
                                              rows_of(change.scenario.tokens_per_gpu))
                           .total();
    return MemoryHint{
        change.option,       change.value, std::move(before),
        change.global_batch, need,         need <= scenario.profile->device().hbm_bytes};
  };
  const std::vector<Change> changes = changes_of(scenario);
  std::vector<MemoryHint> hints;
  for (const Change& change : changes) {
    MemoryHint hint = hint_of(change, "");
    if (hint.need.gib() <= 0.98 * outcome.memory_gib) hints.push_back(std::move(hint));
  }
  const auto fits = [](const MemoryHint& hint) { return hint.fits; };
  if (std::any_of(hints.begin(), hints.end(), fits)) return hints;
  std::set<std::pair<std::string, std::string>> found;
  for (const Change& first : changes) {
    for (const Change& second : changes_of(first.scenario)) {
      const std::pair options(first.option, second.option);
      if (!follows(first.option, second.option) || found.count(options) != 0) continue;
      MemoryHint hint = hint_of(second, "--" + first.option + " " + first.value);
      if (!hint.fits) continue;
      found.insert(options);
      hints.push_back(std::move(hint));
    }
  }
  return hints;
}

}  // namespace moesim::study
