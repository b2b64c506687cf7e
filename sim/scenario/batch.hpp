#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/enum_names.hpp"
#include "sim/scenario/idle_rules.hpp"
#include "sim/scenario/option.hpp"

namespace moesim::scenario {

enum class Mode { train, prefill };
inline constexpr EnumNames<Mode, 2> mode_names{
    {{Mode::train, "train", "forward, backward and optimizer"},
     {Mode::prefill, "prefill", "forward only"}}};

// Which passes a step has, over how many tokens.
struct Batch {
  Mode mode = Mode::train;
  std::int64_t sequence_length = 2048;
  std::int64_t micro_batch = 8;         // sequences per GPU and micro-step
  std::int64_t tokens_per_gpu = 16384;  // of one micro-step, S
  std::int64_t micro_steps = 1;         // gradient accumulation: global batch / (G * micro_batch)
};

std::vector<NamedValue> mode_values();
// Throws UsageError; of decoding it says that no step is like it.
Mode parse_mode(const std::string& text, const std::string& flag);
std::string name_of_mode(Mode mode);
void use_usual_sequence_length(Resolution& at);
void use_one_micro_step(Resolution& at);
void set_global_batch(std::int64_t sequences, Resolution& at);
std::int64_t global_batch(const Scenario& scenario);
void check_operations(const Scenario& scenario, Use use);
void use_usual_tokens(Resolution& at);
void settle_tokens(Resolution& at);  // given tokens stand for the micro-batch that makes them
void check_sequences(const Scenario& scenario, Use use);

template <class Table>
void declare_batch(Table& table) {
  table.choice("mode", mode_values(), parse_mode, name_of_mode, &Batch::mode)
      .by_default("train")
      .help("what a step is:")
      .affects(Affects::routing)
      .in_route(false)
      .idle(without_phase);
  table.whole("sequence-length", "N", 1, std::int64_t{1} << 27, &Batch::sequence_length)
      .by_default("the model's", use_usual_sequence_length)
      .help("tokens per sequence")
      .affects(Affects::routing)
      .in_route(false)
      .after({"model", "routing"})
      .idle(without_sequences);
  table.whole("micro-batch", "N", 1, 1 << 20, &Batch::micro_batch)
      .by_default("8")
      .help("sequences per GPU and micro-step")
      .affects(Affects::routing)
      .in_route(false)
      .idle(without_sequences);
  table.whole("global-batch", "N", 1, std::int64_t{1} << 40, set_global_batch, global_batch)
      .by_default("what one micro-step gives", use_one_micro_step)
      .help("sequences per step; more accumulates gradients")
      .after({"gpus", "mode", "tokens-per-gpu"})
      .applies(is_training)
      .idle(without_training)
      .checked(check_operations);
  table.whole("tokens-per-gpu", "S", 1, std::int64_t{1} << 31, &Batch::tokens_per_gpu)
      .by_default("sequence length times micro-batch; without either the trace's", use_usual_tokens)
      .help("tokens per GPU and micro-step")
      .affects(Affects::routing)
      .after({"sequence-length", "micro-batch", "routing"})
      .then(settle_tokens)
      .checked(check_sequences);
}

}  // namespace moesim::scenario
