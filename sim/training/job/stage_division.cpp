#include "sim/training/job/stage_division.hpp"

#include <numeric>

namespace moesim::training {

int stage_ranks(const parallel::ParallelLayout& layout) { return layout.gpus / layout.pipeline; }

StageDivision stage_division(const parallel::ParallelLayout& layout) {
  const int block = layout.expert * layout.expert_tensor;
  StageDivision division;
  division.ranks = std::lcm(block, layout.tensor * layout.context);
  division.sets = stage_ranks(layout) / division.ranks;
  division.blocks_per_set = division.ranks / block;
  return division;
}

}  // namespace moesim::training
