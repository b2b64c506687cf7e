#pragma once

#include <cstdint>

#include "kernels/measure/points/point.hpp"

// Points that more than one suite is made of.
namespace moesim::kernels::measure {

// Y[m, n] = X[m, k] W[n, k]^T, bf16.
PointSpec gemm_point(std::int64_t m, std::int64_t n, std::int64_t k);
// A memory-bound kernel ("streaming", "activation", "normalization") on [rows, 4096] bf16 arrays,
// so many of them read and one written.
PointSpec memory_point(const char* kernel, std::int64_t rows, int arrays_read);
// `bytes`: the whole per-rank buffer.
PointSpec exchange_point(const char* op, const char* pattern, int gpus, std::int64_t bytes);

}  // namespace moesim::kernels::measure
