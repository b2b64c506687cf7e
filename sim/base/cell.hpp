#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <variant>

#include "sim/base/decimal.hpp"

namespace moesim {

// One cell of a result: absent (it does not apply), a flag, a number or text. A number is whole, a
// figure in floating point, or a decimal exactly as typed.
using Cell = std::variant<std::monostate, bool, std::int64_t, double, Decimal, std::string>;

inline bool is_absent(const Cell& cell) { return std::holds_alternative<std::monostate>(cell); }

// A figure; absent where it is not finite.
inline Cell figure_cell(double value) { return std::isfinite(value) ? Cell(value) : Cell(); }

// The number in a cell, 0 where it holds none.
inline double number_in(const Cell& cell) {
  if (const auto* whole = std::get_if<std::int64_t>(&cell)) return static_cast<double>(*whole);
  if (const auto* figure = std::get_if<double>(&cell)) return *figure;
  if (const auto* decimal = std::get_if<Decimal>(&cell)) return decimal->to_double();
  return 0;
}

}  // namespace moesim
