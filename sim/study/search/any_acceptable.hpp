#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace moesim::study {

// The candidates of a search that was stopped before one of them was acceptable.
struct AnyAcceptable {
  struct Candidate {
    std::uint32_t family = 0;  // those of one share their draws
    double bound_us = 0;
  };
  std::vector<Candidate> candidates;

  // Whether one may fit, by its tightest bound.
  std::function<bool(std::size_t candidate)> may_fit;
  // Simulates one.
  std::function<bool(std::size_t candidate)> is_acceptable;
  // Asked before each candidate; true ends the search. May be empty.
  std::function<bool()> give_up;
  static constexpr std::size_t most = 64;  // that are simulated
};

// Tries the candidates of some families, in the order given, until one is acceptable: families in
// the order of the least bound of each, at spread_places(). Returns how many were simulated.
std::size_t find_acceptable(const AnyAcceptable& search);

}  // namespace moesim::study
