#pragma once

#include <string>
#include <vector>

#include "kernels/layer/plan.hpp"
#include "kernels/measure/points/point.hpp"

// Whole layers as points to measure. Host code without CUDA.
namespace moesim::kernels::measure {

// One configuration of a layer, in the spellings of the command line.
struct LayerCase {
  std::string router;           // "top2+fr+ir"
  std::string capacity_factor;  // "1.5"
  std::string dispatch;         // "index" or "einsum"
};

// Top-1 and top-2, with and without FR and IR, CF 0.5 to 3, both dispatches: what the paper varies.
const std::vector<LayerCase>& layer_cases();

// The size of a layer, on each of `gpus` ranks.
struct LayerSize {
  int tokens = 8192;
  int hidden = 4096;
  int ffn = 11008;
  int experts = 8;
  int gpus = 1;
};

// Throws UsageError for a layer that cannot be.
PointSpec layer_point(const LayerCase& layer, const LayerSize& size, layer::Pass pass);
// The layer of a point, as `rank` has it.
layer::LayerProblem layer_of(const PointSpec& spec, int rank);
layer::Pass pass_of(const PointSpec& spec);

}  // namespace moesim::kernels::measure
