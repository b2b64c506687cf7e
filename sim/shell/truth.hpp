#pragma once

#include <algorithm>

namespace moesim::shell {

// What a condition of a script is, or whether one of its commands runs: `maybe` depends on what is
// not in the script. In this order, so that "and" is the least of two and "or" the largest.
enum class Truth { no, maybe, yes };

inline Truth both(Truth one, Truth other) { return std::min(one, other); }
inline Truth either(Truth one, Truth other) { return std::max(one, other); }
inline Truth truth_of(bool known) { return known ? Truth::yes : Truth::no; }
inline Truth opposite(Truth truth) {
  if (truth == Truth::maybe) return truth;
  return truth_of(truth == Truth::no);
}

}  // namespace moesim::shell
