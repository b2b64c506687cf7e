#pragma once

#include <cstdint>

#include "sim/scenario/scenario.hpp"

namespace moesim::step {

inline constexpr double parameter_bytes = 2;    // of a parameter and its gradient, bf16
inline constexpr double probability_bytes = 4;  // of one route, where it is sent separately: fp32

// Hidden states of this number of tokens, bf16.
double row_bytes(const scenario::Scenario& scenario, std::int64_t rows);
// Per-rank buffer of an all-to-all of blocks of C rows: E C rows.
double dispatch_bytes(const scenario::Scenario& scenario, std::int64_t capacity);
// Per-rank buffer of the all-gather before an exchange of unknown sizes: 64-bit counts from every
// GPU for all experts (Megatron-Core's all-to-all dispatcher).
double counts_bytes(const scenario::Scenario& scenario);

}  // namespace moesim::step
