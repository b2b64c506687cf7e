#include "sim/uncertainty/statistics/symmetric_matrix.hpp"

#include <cmath>
#include <numeric>
#include <utility>

#include "sim/base/error.hpp"

namespace moesim::uncertainty {

SymmetricMatrix::SymmetricMatrix(std::size_t size, Vector rows)
    : size_(size), factor_(std::move(rows)) {
  for (std::size_t row = 0; row < size_; ++row) {
    for (std::size_t column = 0; column <= row; ++column) {
      double rest = at(row, column);
      for (std::size_t inner = 0; inner < column; ++inner) {
        rest -= at(row, inner) * at(column, inner);
      }
      if (row != column) {
        at(row, column) = rest / at(column, column);
      } else if (rest > 0) {
        at(row, row) = std::sqrt(rest);
      } else {
        throw Error("a covariance matrix is not positive definite");
      }
    }
  }
}

Vector SymmetricMatrix::solve(Vector right) const {
  for (std::size_t row = 0; row < size_; ++row) {
    for (std::size_t inner = 0; inner < row; ++inner) right[row] -= at(row, inner) * right[inner];
    right[row] /= at(row, row);
  }
  for (std::size_t row = size_; row-- > 0;) {
    for (std::size_t inner = row + 1; inner < size_; ++inner) {
      right[row] -= at(inner, row) * right[inner];
    }
    right[row] /= at(row, row);
  }
  return right;
}

double SymmetricMatrix::log_determinant() const {
  double sum = 0;
  for (std::size_t row = 0; row < size_; ++row) sum += 2 * std::log(at(row, row));
  return sum;
}

double dot(const Vector& one, const Vector& other) {
  return std::inner_product(one.begin(), one.end(), other.begin(), 0.0);
}

}  // namespace moesim::uncertainty
