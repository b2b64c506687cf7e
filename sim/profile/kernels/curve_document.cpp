#include "sim/profile/kernels/curve_document.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace moesim::profile {
namespace {

// The index of a name; as many as there are names where it is none of them.
std::size_t index_in(std::span<const char* const> names, const std::string& name) {
  return static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin());
}

std::size_t variable_in(std::span<const char* const> variables, const std::string& name,
                        const Node& item) {
  const std::size_t index = index_in(variables, name);
  if (index == variables.size()) item.fail("unknown variable '" + name + "'");
  return index;
}

}  // namespace

double CurveRange::octaves_outside(double value) const {
  return std::max({std::log2(value / high), std::log2(low / value), 0.0});
}

double CurveRange::inside(double value) const { return std::clamp(value, low, high); }

CurveRange read_range(const Node& node, const std::string& key, double least) {
  const std::vector<double> bounds = node.numbers(key);
  const bool fits = bounds.size() == 2 && bounds[0] > 0 && bounds[0] >= least;
  if (!fits || !(bounds[1] >= bounds[0])) {
    node.fail(fmt::format("expected [lowest, highest], {}",
                          least > 0 ? fmt::format("at least {:g}", least) : "above 0"),
              key);
  }
  return {bounds[0], bounds[1]};
}

CorrectionTerm read_term(const Node& item, std::span<const char* const> variables) {
  LogGrid grid(item);
  const std::size_t x = variable_in(variables, grid.x(), item);
  const std::size_t y = variable_in(variables, grid.y(), item);
  return {std::move(grid), x, y};
}

std::size_t read_input(const Node& item, std::span<const char* const> inputs) {
  const std::string name = item.text("x");
  const std::size_t index = index_in(inputs, name);
  if (index == inputs.size()) item.fail("unknown input '" + name + "'", "x");
  return index;
}

}  // namespace moesim::profile
