#pragma once

#include <cstdint>
#include <string>

#include "kernels/measure/suites/suite.hpp"

namespace moesim::kernels::measure {

// Names as the curves of profiles have them (profiles/HARDWARE.md, "Data types").
constexpr const char* fp8_tensor = "fp8";       // one scale per matrix
constexpr const char* fp8_block = "fp8_block";  // one per 128 of X and per 128 x 128 of W

// Y[m, n] = X[m, k] W[n, k]^T, X and W in e4m3 with scales in fp32, sums in fp32, Y in bf16: the
// product alone, X arrives in FP8. m a multiple of 16, n and k of 128.
PointSpec fp8_gemm_point(const std::string& dtype, std::int64_t m, std::int64_t n, std::int64_t k);

Suite gemm_fp8_suite();

}  // namespace moesim::kernels::measure
