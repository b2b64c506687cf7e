#pragma once

#include <cstddef>
#include <vector>

namespace moesim::uncertainty {

using Vector = std::vector<double>;

// A symmetric positive definite matrix, factored once (Cholesky): for the few dozen rows that error
// models have. Throws Error where it is not positive definite.
class SymmetricMatrix {
 public:
  // `rows` is size x size, row by row; the lower triangle is read.
  SymmetricMatrix(std::size_t size, Vector rows);

  std::size_t size() const { return size_; }
  Vector solve(Vector right) const;
  double log_determinant() const;

 private:
  double& at(std::size_t row, std::size_t column) { return factor_[row * size_ + column]; }
  double at(std::size_t row, std::size_t column) const { return factor_[row * size_ + column]; }

  std::size_t size_;
  Vector factor_;
};

double dot(const Vector& one, const Vector& other);

}  // namespace moesim::uncertainty
