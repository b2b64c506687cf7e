#include "kernels/measure/fit/smooth_grid.hpp"

#include <cassert>
#include <cmath>

#include "sim/profile/kernels/log_grid.hpp"

namespace moesim::kernels::measure {
namespace {

constexpr double pull_to_zero = 1e-3;

// Solves A x = b in place for a symmetric positive definite A (row-major): Cholesky.
std::vector<double> solve(std::vector<double>& a, std::vector<double> b) {
  const std::size_t size = b.size();
  for (std::size_t column = 0; column < size; ++column) {
    for (std::size_t row = column; row < size; ++row) {
      double sum = a[row * size + column];
      for (std::size_t inner = 0; inner < column; ++inner) {
        sum -= a[row * size + inner] * a[column * size + inner];
      }
      a[row * size + column] = row == column ? std::sqrt(sum) : sum / a[column * size + column];
    }
  }
  for (std::size_t row = 0; row < size; ++row) {
    for (std::size_t inner = 0; inner < row; ++inner) b[row] -= a[row * size + inner] * b[inner];
    b[row] /= a[row * size + row];
  }
  for (std::size_t row = size; row-- > 0;) {
    for (std::size_t inner = row + 1; inner < size; ++inner) {
      b[row] -= a[inner * size + row] * b[inner];
    }
    b[row] /= a[row * size + row];
  }
  return b;
}

}  // namespace

std::size_t SmoothGrid::knots() const {
  std::size_t count = 1;
  for (const auto& axis : axes_) count *= axis.size();
  return count;
}

std::vector<SmoothGrid::Weight> SmoothGrid::weights(const std::vector<double>& at) const {
  assert(at.size() == axes_.size());
  std::vector<Weight> corners{{0, 1}};
  for (std::size_t axis = 0; axis < axes_.size(); ++axis) {
    const profile::Hat hat = profile::locate(axes_[axis], at[axis]);
    std::vector<Weight> next;
    for (const Weight& corner : corners) {
      const std::size_t base = corner.knot * axes_[axis].size() + hat.low;
      next.push_back({base, corner.share * (1 - hat.share)});
      next.push_back({base + 1, corner.share * hat.share});
    }
    corners = std::move(next);
  }
  return corners;
}

void SmoothGrid::add_penalty(std::vector<double>& matrix, double smoothness) const {
  const std::size_t count = knots();
  std::size_t stride = 1;
  for (std::size_t axis = axes_.size(); axis-- > 0;) {
    for (std::size_t knot = 0; knot < count; ++knot) {
      if (knot / stride % axes_[axis].size() + 1 == axes_[axis].size()) continue;
      const std::size_t next = knot + stride;
      matrix[knot * count + knot] += smoothness;
      matrix[next * count + next] += smoothness;
      matrix[knot * count + next] -= smoothness;
      matrix[next * count + knot] -= smoothness;
    }
    stride *= axes_[axis].size();
  }
  for (std::size_t knot = 0; knot < count; ++knot) matrix[knot * count + knot] += pull_to_zero;
}

void SmoothGrid::fit(const std::vector<std::vector<double>>& at, const std::vector<double>& values,
                     double smoothness) {
  assert(at.size() == values.size());
  const std::size_t count = knots();
  std::vector<double> matrix(count * count, 0.0), right(count, 0.0);
  for (std::size_t point = 0; point < at.size(); ++point) {
    const std::vector<Weight> corners = weights(at[point]);
    for (const Weight& row : corners) {
      right[row.knot] += row.share * values[point];
      for (const Weight& column : corners) {
        matrix[row.knot * count + column.knot] += row.share * column.share;
      }
    }
  }
  add_penalty(matrix, smoothness);
  values_ = solve(matrix, std::move(right));
}

double SmoothGrid::evaluate(const std::vector<double>& at) const {
  double sum = 0;
  for (const Weight& corner : weights(at)) sum += corner.share * values_[corner.knot];
  return sum;
}

}  // namespace moesim::kernels::measure
