#pragma once

#include <cstdint>

#include "kernels/measure/suites/suite.hpp"

namespace moesim::kernels::measure {

// Y[m, n] = X[m, k] W[n, k]^T, bf16.
PointSpec gemm_point(std::int64_t m, std::int64_t n, std::int64_t k);

Suite gemm_suite();

}  // namespace moesim::kernels::measure
