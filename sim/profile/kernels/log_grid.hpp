#pragma once

#include <string>
#include <vector>

#include "sim/base/formats/document.hpp"

namespace moesim::profile {

// A list of knots: ascending, at least two; errors name file and key.
std::vector<double> read_knots(const Node& node, const std::string& key);

// A piecewise linear function of one variable with given knots, held constant outside them.
struct Hat {
  std::size_t low = 0;  // the knot at or below x
  double share = 0;     // 0 at `low`, 1 at `low + 1`
};
// `knots` ascending, at least two.
Hat locate(const std::vector<double>& knots, double x);
// The value at x of the function with `values` at `knots`.
double interpolate(const std::vector<double>& knots, const std::vector<double>& values, double x);

// A bilinear surface over two named variables, constant beyond its knots: one smooth correction
// term, in log time, of a physical model.
class LogGrid {
 public:
  // Reads {"x", "y", "x_knots", "y_knots", "values" (row-major, x slowest)}; errors name the key.
  explicit LogGrid(const Node& node);

  double at(double x, double y) const;
  const std::string& x() const { return x_; }
  const std::string& y() const { return y_; }

 private:
  std::string x_;
  std::string y_;
  std::vector<double> x_knots_;
  std::vector<double> y_knots_;
  std::vector<double> values_;
};

}  // namespace moesim::profile
