#pragma once

#include <cstdint>

#include "kernels/measure/suites/suite.hpp"

namespace moesim::kernels::measure {

// How the factors lie in memory (param "layout"), both row-major.
inline constexpr const char* linear_layout = "x-wt";    // Y[m, n] = X[m, k] W[n, k]^T
inline constexpr const char* gradient_layout = "xt-y";  // Y[m, n] = X[k, m]^T W[k, n]

// A product in bf16.
PointSpec gemm_point(std::int64_t m, std::int64_t n, std::int64_t k,
                     const char* layout = linear_layout);

Suite gemm_suite();

}  // namespace moesim::kernels::measure
