#pragma once

#include <cstdint>
#include <vector>

#include "sim/routing/tokens/choice_table.hpp"
#include "sim/routing/tokens/tile_kernels.hpp"

namespace moesim::routing {

// Chooses the experts of each token from its logits, among all experts or a range of them.
class TileChooser {
 public:
  TileChooser(int experts, const TileKernels& kernels);

  float* tile() { return tile_.data(); }
  // For the current tile: the normalisation of g. `maximum`: each token's largest logit.
  void find_softmax();
  void find_softmax(const float* maximum);
  const float* maximum() const { return maximum_; }
  // Whether the first `valid` tokens have one: no logit is NaN or +inf, and not all are -inf.
  bool has_softmax(int valid) const;
  // The same, and the `choices` best of all experts, with g.
  void find_best(int choices, const ChoiceOutput& out);
  // The `choices` best of experts [first, last), with g.
  void best(int first, int last, int choices, const ChoiceOutput& out);
  // The sum of the g of the `choices` best of all experts: 16 values.
  void best_mass(int choices, float* mass);
  // Converts the whole tile to g.
  void to_probabilities();
  // Converts the logits of `choices` rows to g.
  void to_probabilities(int choices, const ChoiceOutput& logits) const;

 private:
  int experts_;
  const TileKernels& kernels_;
  TileRows tile_, scratch_;
  std::vector<float> probability_;
  std::vector<std::uint16_t> expert_;
  alignas(64) float maximum_[tile_tokens] = {};
  alignas(64) float sum_[tile_tokens] = {};
};

}  // namespace moesim::routing
