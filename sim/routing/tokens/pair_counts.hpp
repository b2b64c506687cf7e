#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/routing/tokens/choice_table.hpp"

namespace moesim::routing {

// How often two experts are chosen by the same token, in one layer, against what the popularity of
// each says. Holds 4 E^2 numbers.
class PairCounts {
 public:
  explicit PairCounts(int experts);

  // The tokens of a table, all of one step and rank: popularity is taken of each half by itself.
  void add(const ChoiceTable& table);

  // The mean square of (pairs of e and f) / (pairs that their popularities say) - 1. Tokens of the
  // two halves of each table are independent, so products of their differences are free of the
  // noise of counting: about 0 without a correlation of choices, whatever the number of tokens;
  // may be negative. Pairs weigh by how often they are expected; those below one, less.
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
