#pragma once

#include <cmath>

namespace moesim::kernels::measure {

// An element of a product of bf16 matrices, in fp64, and how far a right result may be from it.
class ProductElement {
 public:
  void add(double left, double right) {
    const double product = left * right;
    sum_ += product;
    size_ += std::abs(product);
    squares_ += product * product;
  }
  double value() const { return sum_; }
  // Whether an element in bf16 is right to two units of its last place, and what sums on the way
  // may err by. Sums in fp32 err by some units in the last place of the sum of magnitudes. cuBLAS
  // may also cut k into parts and add those up in bf16 (unless
  // CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION is set; frameworks leave it off). A rounding
  // to bf16 errs by at most 2^-8, and by 0.42 * 2^-8 in the root mean square over mantissas. With Q
  // the sum of the products' squares, and signs at random, the parts' squares sum to Q, however
  // many there are, and those of s running sums to Q (s + 1) / 2: together the roundings err by
  // 0.42 * 2^-8 sqrt(Q (1 + (s + 1) / 2)) in the root mean square. sqrt(Q) / 32 is six times that
  // for s = 16. A product that lacks 64 of 14,336 terms is off by sqrt(Q) / 15 in the root mean
  // square: some of the elements that are looked at show it.
  bool matches(double got) const {  // NaN does not
    const double slack = size_ * 0x1p-18 + std::sqrt(squares_) / 32;
    return std::abs(got - sum_) <= std::abs(sum_) * 0x1p-7 + slack;
  }

 private:
  double sum_ = 0, size_ = 0, squares_ = 0;
};

}  // namespace moesim::kernels::measure
