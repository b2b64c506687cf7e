#pragma once

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

// Matrix products as this project writes them, row-major, and as cuBLAS, column-major, is asked for
// them. Host code without CUDA, so that tests carry out the very calls that a GPU gets.
namespace moesim::kernels {

// result[m, n] = left right, all dense and row-major; `left` is [m, k], or [k, m] where transposed,
// `right` [k, n], or [n, k] where transposed. bf16, sums in fp32.
struct Gemm {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool left_transposed = false;
  bool right_transposed = false;
  bool accumulates = false;  // result += left right
  bool wide = false;         // the result is fp32

  double flops() const {
    return 2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
};

// Products of one shape at equal distances, in elements; a stride of 0: the same for all.
struct GemmBatch {
  std::int64_t count = 1;
  std::int64_t left_stride = 0;
  std::int64_t right_stride = 0;
  std::int64_t result_stride = 0;
};

// c[m, n] = op(a) op(b) column-major, a_rows, b_rows and c_rows the leading dimensions.
struct CublasGemm {
  bool a_transposed = false;
  bool b_transposed = false;
  int m = 0;
  int n = 0;
  int k = 0;
  int a_rows = 0;
  int b_rows = 0;
  int c_rows = 0;
};

// The same memory read column-major holds the transposes: result^T = right^T left^T, so `a` is
// `right` and `b` is `left`. Throws std::invalid_argument for sizes beyond cuBLAS's int.
inline CublasGemm column_major(const Gemm& gemm) {
  const auto narrow = [](std::int64_t size) {
    if (size < 0 || size > std::numeric_limits<int>::max()) {
      throw std::invalid_argument("a matrix product of size " + std::to_string(size) +
                                  ": cuBLAS takes 0 to 2^31 - 1");
    }
    return static_cast<int>(size);
  };
  return {gemm.right_transposed,
          gemm.left_transposed,
          narrow(gemm.n),
          narrow(gemm.m),
          narrow(gemm.k),
          narrow(gemm.right_transposed ? gemm.k : gemm.n),
          narrow(gemm.left_transposed ? gemm.m : gemm.k),
          narrow(gemm.n)};
}

}  // namespace moesim::kernels
