#pragma once

#include <compare>
#include <cstdint>
#include <span>

#include "sim/step/kernels/kernels.hpp"
#include "sim/step/program/step_program.hpp"

namespace moesim::step {

// The amount of work of an operation of an MoE layer, where routing determines it.
struct Amount {
  bool padded = true;
  std::int64_t rows = 0;     // of a padded block (C per source GPU and expert); else of the GPU, or
                             // of one of its experts (PhaseRows)
  std::int64_t ir_rows = 0;  // rectified rows of the GPU

  auto operator<=>(const Amount&) const = default;
};

// The kernels of an operation on a GPU with the pricer's tokens; for communication, among the group
// `members`.
Kernels kernels_of(const StepOperation& operation, const Amount& amount, const KernelPricer& pricer,
                   std::span<const int> members);

}  // namespace moesim::step
