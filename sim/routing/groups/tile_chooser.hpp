#pragma once

#include <cstdint>
#include <vector>

#include "sim/routing/tokens/choice_table.hpp"
#include "sim/routing/tokens/tile_kernels.hpp"

namespace moesim::routing {

// The experts of each token from its logits, its range of experts or similar, for choosers.
class TileChooser {
 public:
  TileChooser(int experts, const TileKernels& kernels);

  float* tile() { return tile_.data(); }
  // Of the tile as it stands: what turns logits into g. `maximum`: each token's largest logit.
  void find_softmax();
  void find_softmax(const float* maximum);
  // The same, and the `choices` best of all experts, as g.
  void find_best(int choices, const ChoiceOutput& out);
  // The `choices` best of experts [first, last), as g.
  void best(int first, int last, int choices, const ChoiceOutput& out);
  // Adds up the g of the `choices` best of all experts: 16 values.
  void best_mass(int choices, float* mass);
  // The whole tile becomes g.
  void to_probabilities();
  // Logits of `choices` rows become g.
  void to_probabilities(int choices, const ChoiceOutput& logits) const;

 private:
  int experts_;
  const TileKernels& kernels_;
  std::vector<float> tile_, scratch_, probability_;
  std::vector<std::uint16_t> expert_;
  alignas(64) float maximum_[tile_tokens] = {};
  alignas(64) float sum_[tile_tokens] = {};
};

}  // namespace moesim::routing
