#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace moesim::kernels::measure {

// A multilinear function on a grid of knots, fitted to scattered values: least squares with a
// penalty on the differences of neighbouring knots, so that knots without points follow their
// neighbours, and a slight pull to zero, so that far from all points nothing is claimed.
class SmoothGrid {
 public:
  // `axes`: the ascending knots of each variable, at least two each; the last axis is fastest.
  explicit SmoothGrid(std::vector<std::vector<double>> axes) : axes_(std::move(axes)) {}

  // `at`: one coordinate per axis and point. `smoothness` weighs a squared difference of two
  // neighbouring knots against the squared error of a point.
  void fit(const std::vector<std::vector<double>>& at, const std::vector<double>& values,
           double smoothness);
  double evaluate(const std::vector<double>& at) const;
  const std::vector<double>& values() const { return values_; }  // row-major

 private:
  struct Weight {
    std::size_t knot;
    double share;
  };
  std::size_t knots() const;
  std::vector<Weight> weights(const std::vector<double>& at) const;
  void add_penalty(std::vector<double>& matrix, double smoothness) const;

  std::vector<std::vector<double>> axes_;
  std::vector<double> values_;
};

}  // namespace moesim::kernels::measure
