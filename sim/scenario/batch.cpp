#include "sim/scenario/batch.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/base/error.hpp"
#include "sim/model/megatron/megatron_model.hpp"
#include "sim/scenario/scenario.hpp"

namespace moesim::scenario {
namespace {

// The engine keeps three times (24 bytes) for each operation of each GPU. An MoE layer has about 40
// operations with all that adds some (ir@node, a shared expert, checkpointing, ZeRO-3), else fewer.
constexpr double operations_per_layer = 40;
constexpr double most_operations = 2e8;

// Whether nothing but a trace says how many tokens there are: trace-repeat takes any number.
bool has_tokens_of_trace(const Resolution& at) {
  const routing::ScoreSource& scores = at.scenario.scores;
  return scores.kind == routing::ScoreSource::Kind::trace && at.find("tokens-per-gpu") == nullptr &&
         at.find("sequence-length") == nullptr && at.find("micro-batch") == nullptr;
}

// "choose 768 or 1024": the nearest multiples, and the largest micro-batch that would do.
std::string batch_choices(std::int64_t sequences, const Resolution& at) {
  const Scenario& scenario = at.scenario;
  const std::int64_t one_step = scenario.micro_batch * scenario.gpus;
  const std::int64_t less = sequences / one_step * one_step;
  std::string text = "choose ";
  if (less > 0) text += fmt::format("{} or ", less);
  text += fmt::format("{}", less + one_step);
  if (sequences % scenario.gpus != 0 || at.find("tokens-per-gpu") != nullptr) return text;
  const std::int64_t each = sequences / scenario.gpus;
  std::int64_t micro_batch = std::min(scenario.micro_batch, each);
  while (each % micro_batch != 0) --micro_batch;
  return text + fmt::format(", or --micro-batch {}", micro_batch);
}

}  // namespace

std::vector<NamedValue> mode_values() {
  std::vector<NamedValue> values;
  for (const EnumName<Mode>& known : mode_names) values.push_back({known.name, known.meaning});
  return values;
}

Mode parse_mode(const std::string& text, const std::string& flag) {
  if (text == "decode" || text == "generate") {
    throw UsageError(
        fmt::format("{}: {} is not modelled: one token of each sequence at a time, with its reads "
                    "of the KV cache, is no step here; choose from train, prefill",
                    flag, text));
  }
  return value_in(mode_names, text, flag);
}

std::string name_of_mode(Mode mode) { return name_in(mode_names, mode); }

void use_usual_sequence_length(Resolution& at) {
  Scenario& scenario = at.scenario;
  scenario.sequence_length = model::usual_sequence_length(*scenario.model);
  // Fewer tokens than a sequence of the model are one of their own.
  if (has_tokens_of_trace(at)) {
    scenario.sequence_length = std::min(scenario.sequence_length, scenario.recorded()->tokens);
  }
}

void use_usual_tokens(Resolution& at) {
  at.scenario.tokens_per_gpu = has_tokens_of_trace(at)
                                   ? at.scenario.recorded()->tokens
                                   : at.scenario.sequence_length * at.scenario.micro_batch;
}

void settle_tokens(Resolution& at) {
  Scenario& scenario = at.scenario;
  const bool is_product = at.find("tokens-per-gpu") == nullptr && !has_tokens_of_trace(at);
  if (is_product || at.use == Use::routing) return;
  const std::int64_t per_batch = scenario.tokens_per_gpu / scenario.sequence_length;
  if (scenario.tokens_per_gpu % scenario.sequence_length != 0) {
    throw UsageError(
        fmt::format("--tokens-per-gpu: {} tokens are no whole number of sequences of {}: give "
                    "--sequence-length too, or a multiple",
                    scenario.tokens_per_gpu, scenario.sequence_length));
  }
  if (at.find("micro-batch") != nullptr && per_batch != scenario.micro_batch) {
    throw UsageError(fmt::format(
        "--tokens-per-gpu: {} is not --sequence-length {} times --micro-batch {}, which is {}: "
        "leave one of them out",
        scenario.tokens_per_gpu, scenario.sequence_length, scenario.micro_batch,
        scenario.sequence_length * scenario.micro_batch));
  }
  scenario.micro_batch = per_batch;
}

void check_sequences(const Scenario& scenario, Use use) {
  if (use == Use::routing || scenario.tokens_per_gpu <= scenario.sequence_length ||
      scenario.tokens_per_gpu % scenario.sequence_length == 0) {
    return;
  }
  throw UsageError(fmt::format(
      "{} tokens per GPU are no whole number of sequences of {} tokens: change --tokens-per-gpu "
      "or --sequence-length",
      scenario.tokens_per_gpu, scenario.sequence_length));
}

void use_one_micro_step(Resolution& at) { at.scenario.micro_steps = 1; }

void set_global_batch(std::int64_t sequences, Resolution& at) {
  Scenario& scenario = at.scenario;
  // A forward pass accumulates nothing: its global batch is what one pass gives.
  if (scenario.mode == Mode::prefill || at.use == Use::routing) return;
  const std::int64_t one_step = scenario.micro_batch * scenario.gpus;
  if (sequences % one_step != 0) {
    throw UsageError(fmt::format(
        "--global-batch: {} sequences are no whole number of micro-steps: {} GPUs with "
        "--micro-batch {} take {} at a time: {}",
        sequences, scenario.gpus, scenario.micro_batch, one_step, batch_choices(sequences, at)));
  }
  scenario.micro_steps = sequences / one_step;
}

std::int64_t global_batch(const Scenario& scenario) {
  return scenario.micro_batch * scenario.gpus * scenario.micro_steps;
}

void check_operations(const Scenario& scenario, Use use) {
  if (use == Use::routing) return;
  const std::int64_t micro_steps = is_training(scenario) ? scenario.micro_steps : 1;
  const double operations = operations_per_layer * scenario.model->layers *
                            static_cast<double>(scenario.gpus) * static_cast<double>(micro_steps);
  if (operations <= most_operations) return;
  throw UsageError(fmt::format(
      "{} micro-steps of {} layers on {} GPUs are about {:.1g} operations, more than the {:.0g} "
      "that are simulated at a time: use a smaller --global-batch (a step's micro-steps are alike) "
      "or fewer --gpus",
      micro_steps, scenario.model->layers, scenario.gpus, operations, most_operations));
}

}  // namespace moesim::scenario
