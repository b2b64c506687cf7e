#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/routing/tokens/choice_table.hpp"

namespace moesim::routing {

// How often two experts are chosen by the same token, in one layer, compared with the expectation
// from the popularity of each. Stores 4 E^2 numbers.
class PairCounts {
 public:
  explicit PairCounts(int experts);

  // Adds the tokens of a table, all of one step and rank: popularity is computed separately for
  // each half.
  void add(const ChoiceTable& table);

  // The mean square of (pairs of e and f) / (pairs expected from their popularities) - 1. Tokens of
  // the two halves of each table are independent, so products of their differences have no counting
  // noise: about 0 without correlation of choices, for any number of tokens; may be negative. Pairs
  // are weighted by their expected number; less if it is below one.
  double excess() const;

 private:
  struct Half {
    std::vector<double> pairs, expected;  // [expert, expert], symmetric, the diagonal 0
  };
  void add(const ChoiceTable& table, std::size_t first, std::size_t last, Half& half);

  std::size_t experts_;
  std::array<Half, 2> halves_;
};

}  // namespace moesim::routing
