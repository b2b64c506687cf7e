#pragma once

#include "sim/base/enum_names.hpp"
#include "sim/scenario/batch.hpp"
#include "sim/scenario/idle_rules.hpp"
#include "sim/scenario/option.hpp"

namespace moesim::scenario {

enum class Checkpointing { none, full };
inline constexpr EnumNames<Checkpointing, 2> checkpointing_names{
    {{Checkpointing::none, "none", "nothing"},
     {Checkpointing::full, "full", "the forward pass of each layer"}}};
enum class GradientOverlap { none, gradient };
inline constexpr EnumNames<GradientOverlap, 2> gradient_overlap_names{
    {{GradientOverlap::none, "none", "after it"},
     {GradientOverlap::gradient, "gradient",
      "while it goes on, layer by layer; on links that both use, exchanges of tokens go first"}}};

// What a training step stores, repeats and reduces.
struct Training {
  Checkpointing checkpointing = Checkpointing::none;
  int zero = 1;  // ZeRO stage
  GradientOverlap gradient_overlap = GradientOverlap::none;
};

template <class Table>
void declare_training(Table& table) {
  table.choice("checkpointing", checkpointing_names, &Training::checkpointing)
      .by_default("none")
      .help("what the backward pass computes again:")
      .applies(is_training)
      .idle(without_training);
  table.whole("zero", "STAGE", 0, 3, &Training::zero)
      .by_default("1")
      .help("ZeRO stage, 0 to 3: optimizer, then gradients, then parameters spread over the GPUs")
      .applies(is_training)
      .idle(without_training);
  table.choice("overlap", gradient_overlap_names, &Training::gradient_overlap)
      .by_default("none")
      .help("when gradients are reduced, by the backward pass:")
      .applies(is_training)
      .idle(without_training);
}

}  // namespace moesim::scenario
