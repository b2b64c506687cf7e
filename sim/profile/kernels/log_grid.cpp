#include "sim/profile/kernels/log_grid.hpp"

#include <algorithm>
#include <cstddef>

namespace moesim::profile {

std::vector<double> read_knots(const Node& node, const std::string& key) {
  std::vector<double> knots = node.numbers(key);
  if (knots.size() < 2) node.fail("expected at least two knots", key);
  for (std::size_t knot = 1; knot < knots.size(); ++knot) {
    if (!(knots[knot] > knots[knot - 1])) node.fail("knots must ascend", key);
  }
  return knots;
}

Hat locate(const std::vector<double>& knots, double x) {
  const double inside = std::clamp(x, knots.front(), knots.back());
  const auto above = std::upper_bound(knots.begin(), knots.end() - 1, inside);
  const auto high = std::max<std::ptrdiff_t>(above - knots.begin(), 1);
  const auto low = static_cast<std::size_t>(high - 1);
  return {low, (inside - knots[low]) / (knots[low + 1] - knots[low])};
}

double interpolate(const std::vector<double>& knots, const std::vector<double>& values, double x) {
  const Hat hat = locate(knots, x);
  return values[hat.low] * (1 - hat.share) + values[hat.low + 1] * hat.share;
}

LogGrid::LogGrid(const Node& node)
    : x_(node.text("x")),
      y_(node.text("y")),
      x_knots_(read_knots(node, "x_knots")),
      y_knots_(read_knots(node, "y_knots")),
      values_(node.numbers("values")) {
  if (values_.size() != x_knots_.size() * y_knots_.size()) {
    node.fail("expected one value per pair of knots", "values");
  }
}

double LogGrid::at(double x, double y) const {
  const Hat across = locate(x_knots_, x);
  const Hat along = locate(y_knots_, y);
  const std::size_t width = y_knots_.size();
  const auto row = [&](std::size_t at_x) {
    const double* values = values_.data() + at_x * width;
    return values[along.low] * (1 - along.share) + values[along.low + 1] * along.share;
  };
  return row(across.low) * (1 - across.share) + row(across.low + 1) * across.share;
}

}  // namespace moesim::profile
