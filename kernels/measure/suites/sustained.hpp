#pragma once

#include "kernels/measure/suites/suite.hpp"

namespace moesim::kernels::measure {

constexpr const char* sustained_op = "sustained-gemm";

// Products without a rest: a training step runs at the board's power limit, where the clock falls;
// a product alone, between pauses, at the boost clock.
Suite sustained_suite();

}  // namespace moesim::kernels::measure
