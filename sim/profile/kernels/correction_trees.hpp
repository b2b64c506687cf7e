#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/base/formats/document.hpp"

namespace moesim::profile {

// Boosted regression trees: the correction, in log time, of what a physical model leaves over, a
// step function of some inputs (Friedman 2001). The sum over the trees of the leaf that a point
// falls into; a fork sends inputs up to its threshold to the first branch. Beyond what was measured
// the outermost leaves hold.
class CorrectionTrees {
 public:
  CorrectionTrees() = default;
  // Reads {"split", "figure"}, all trees one after another, each in pre-order: a fork has the
  // number of its input, 0 to `inputs` - 1, and its threshold; a leaf -1 and its value. Errors name
  // the key.
  CorrectionTrees(const Node& node, std::size_t inputs);

  // One value per input of the constructor.
  double at(std::span<const double> inputs) const;

 private:
  struct Place {
    std::int32_t input = -1;   // -1: a leaf
    std::uint32_t second = 0;  // where the second branch starts; the first one is the next place
    double figure = 0;
  };
  std::vector<Place> places_;
  std::vector<std::uint32_t> roots_;
};

}  // namespace moesim::profile
