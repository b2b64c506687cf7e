#pragma once

#include "sim/parallel/layout_rules.hpp"

namespace moesim::training {

// The ranks of a stage whose layers wait for each other: expert-parallel groups, and what tensor
// and context groups join of them. Each such set and the same ranks of the other stages are a
// pipeline of their own until gradients are reduced.
struct StageDivision {
  int ranks = 1;           // of a set
  int sets = 1;            // of a stage
  int blocks_per_set = 1;  // of EP x ETP ranks, which have all experts once
};
int stage_ranks(const parallel::ParallelLayout& layout);  // of all sets
StageDivision stage_division(const parallel::ParallelLayout& layout);

}  // namespace moesim::training
