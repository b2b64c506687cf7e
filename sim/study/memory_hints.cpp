#include "sim/study/memory_hints.hpp"

#include <algorithm>
#include <cstdint>
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

}  // namespace

std::vector<MemoryHint> memory_hints(const scenario::Scenario& scenario, const Outcome& outcome) {
  // Fewer tokens are routed to as many rows each.
  const auto rows_of = [&](std::int64_t tokens) {
    const auto share = [&](std::int64_t rows) { return rows * tokens / scenario.tokens_per_gpu; };
    return model::ExchangeRows{share(outcome.rows.mean), share(outcome.rows.most),
                               share(outcome.rows.sent), share(outcome.rows.block)};
  };
  std::vector<MemoryHint> hints;
  for (Change& change : changes_of(scenario)) {
    const Bytes need = step::memory_footprint(change.scenario, outcome.ir_rows_mean,
                                              rows_of(change.scenario.tokens_per_gpu))
                           .total();
    if (need.gib() > 0.98 * outcome.memory_gib) continue;
    hints.push_back({std::move(change.option), std::move(change.value), change.global_batch, need,
                     need <= scenario.profile->device().hbm_bytes});
  }
  return hints;
}

}  // namespace moesim::study
