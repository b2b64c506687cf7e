#pragma once

#include <fmt/format.h>

#include <string_view>
#include <type_traits>

#include "sim/base/error.hpp"

namespace moesim {

// Throws UsageError, which names the field or option and the range, for a value outside `low` to
// `high`, both of which it may be. NaN is in no range.
template <class Number>
void check_range(std::string_view name, Number value, std::type_identity_t<Number> low,
                 std::type_identity_t<Number> high) {
  if (value >= low && value <= high) return;
  throw UsageError(fmt::format("{} {}: out of range: from {} to {}", name, value, low, high));
}

}  // namespace moesim
