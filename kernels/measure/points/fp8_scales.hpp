#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace moesim::kernels::measure {

// The value of an e4m3 number (1 sign, 4 exponent, 3 mantissa bits, bias 7; no infinities).
inline double e4m3_value(std::uint8_t bits) {
  const int exponent = bits >> 3U & 15U, mantissa = bits & 7U;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  const double size =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (bits & 128U) != 0 ? -size : size;
}

// Where the fp32 scales of Y[m, n] = X[m, k] W[n, k]^T in FP8 lie: one per matrix, or one per 128
// values of a row of X and per 128 x 128 of W, as cuBLASLt reads them (cuBLAS documentation,
// "1D and 2D Block Scaling for FP8 Data Types"): X's by blocks of k, then rows; W's by blocks of n,
// then blocks of k, of which it wants a multiple of four. m has to be a multiple of four, n and k
// of 128.
class Fp8Scales {
 public:
  static constexpr std::size_t block = 128;
  Fp8Scales(bool by_block, std::size_t m, std::size_t n, std::size_t k)
      : by_block_(by_block), m_(m), n_(n), k_(k) {}

  std::size_t of_x() const { return by_block_ ? m_ * (k_ / block) : 1; }
  std::size_t of_w() const { return by_block_ ? n_ / block * w_stride() : 1; }
  std::size_t x_place(std::size_t row, std::size_t depth) const {
    return by_block_ ? depth / block * m_ + row : 0;
  }
  std::size_t w_place(std::size_t column, std::size_t depth) const {
    return by_block_ ? column / block * w_stride() + depth / block : 0;
  }

 private:
  std::size_t w_stride() const { return (k_ / block + 3) / 4 * 4; }
  bool by_block_;
  std::size_t m_, n_, k_;
};

}  // namespace moesim::kernels::measure
