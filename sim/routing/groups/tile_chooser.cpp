#include "sim/routing/groups/tile_chooser.hpp"

#include <algorithm>
#include <cmath>

namespace moesim::routing {

TileChooser::TileChooser(int experts, const TileKernels& kernels)
    : experts_(experts), kernels_(kernels) {
  tile_.grow(static_cast<std::size_t>(experts));
  scratch_.grow(static_cast<std::size_t>(experts));
  probability_.resize(tile_tokens);
  expert_.resize(tile_tokens);
}

void TileChooser::find_softmax() {
  kernels_.largest(tile_.data(), 0, experts_, 1,
                   {expert_.data(), probability_.data(), tile_tokens});
  find_softmax(probability_.data());
}

void TileChooser::find_softmax(const float* maximum) {
  std::copy_n(maximum, tile_tokens, maximum_);
  kernels_.exp_sum(tile_.data(), experts_, maximum_, scratch_.data(), sum_);
}

bool TileChooser::has_softmax(int valid) const {
  return std::none_of(sum_, sum_ + valid, [](float value) { return std::isnan(value); });
}

void TileChooser::find_best(int choices, const ChoiceOutput& out) {
  kernels_.largest(tile_.data(), 0, experts_, choices, out);
  find_softmax(out.probability);
  to_probabilities(choices, out);
}

void TileChooser::best(int first, int last, int choices, const ChoiceOutput& out) {
  kernels_.largest(tile_.data(), first, last, choices, out);
  to_probabilities(choices, out);
}

void TileChooser::best_mass(int choices, float* mass) {
  const auto size = static_cast<std::size_t>(choices) * tile_tokens;
  if (probability_.size() < size) probability_.resize(size);
  if (expert_.size() < size) expert_.resize(size);
  best(0, experts_, choices, {expert_.data(), probability_.data(), tile_tokens});
  std::copy_n(probability_.data(), tile_tokens, mass);
  for (std::size_t row = tile_tokens; row < size; row += tile_tokens) {
    for (std::size_t token = 0; token < tile_tokens; ++token) {
      mass[token] += probability_[row + token];
    }
  }
}

void TileChooser::to_probabilities() {
  to_probabilities(experts_, {nullptr, tile_.data(), tile_tokens});
}

void TileChooser::to_probabilities(int choices, const ChoiceOutput& logits) const {
  kernels_.probabilities(maximum_, sum_, choices, logits);
}

}  // namespace moesim::routing
