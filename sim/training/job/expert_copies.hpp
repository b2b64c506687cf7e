#pragma once

#include <span>
#include <vector>

namespace moesim::training {

// Copies of hot experts beside the experts of a layer, as DeepSeek's EPLB places them inside one
// group (deepseek-ai/EPLB, "global load balancing"): one copy after another goes to the expert with
// the most rows per copy; then all copies are packed, the heaviest first, each on the rank with the
// fewest rows that has a free slot. Every rank has (E + R) / P slots.
class ExpertCopies {
 public:
  // `measured`: rows of each expert in another step, any scale. Precondition: `ranks` divides
  // E + `redundant`.
  ExpertCopies(std::span<const double> measured, int ranks, int redundant);

  const std::vector<int>& copies() const { return copies_; }  // [expert], at least 1
  // [rank]: the rows that it computes of `rows` [expert], each divided evenly among its copies.
  std::vector<double> rows_of_ranks(std::span<const double> rows) const;
  // [slot of all ranks]: those of each copy, rank by rank.
  std::vector<double> rows_of_slots(std::span<const double> rows) const;

 private:
  std::vector<int> copies_;
  std::vector<std::vector<int>> experts_of_;  // [rank], an expert once per copy
};

}  // namespace moesim::training
