#pragma once

#include "kernels/measure/suites/suite.hpp"

namespace moesim::kernels::measure {

constexpr const char* sustained_op = "sustained-gemm";
// Param: the share of the left factor's rows that are zeros; none if it is not there.
constexpr const char* zero_share = "zero_rows";

// Products without a rest: a training step runs at the board's power limit, where the clock falls;
// a product alone, between pauses, at the boost clock. In bf16 once with rows of random values,
// once with half of them zeros, as an expert's padding is: they switch less and so draw less power.
// In FP8 as the suite gemm-fp8 measures it, one scale per tensor and scales by block.
Suite sustained_suite();

}  // namespace moesim::kernels::measure
