#pragma once

#include <vector>

#include "sim/engine/program.hpp"
#include "sim/network/exchange/exchange_clock.hpp"

namespace moesim::engine {

// A partition of the ranks of a program as the columns of a folded one see it.
struct FoldedPartition {
  Partition columns;              // groups of columns, and the group of each column
  std::vector<int> whole_groups;  // [group]: a group of the program that it represents
};

// Classes of ranks with equal times, for exchanges that do not affect each other.
struct Fold {
  std::vector<int> column_of;       // [rank]
  std::vector<int> representative;  // [column]: its lowest rank
  std::vector<FoldedPartition> partitions;
};

// The coarsest classes by colour refinement (as for graphs: Berkholz, Bonsma, Grohe 2017). Two
// ranks start in one class if each of their operations takes the same time, and each uneven
// exchange has the same matrix, in which they have the same position, among members that `clock`
// treats alike (equivalence_key(): links of equal rates and latencies, divided among domains and
// switches in the same way; groups that straddle nodes or have a slow link differ). Classes are
// then split until, in every partition, the groups of all ranks of a class contain the same classes
// (in the same positions, where a matrix is exchanged). This is sufficient for equal times, by
// induction over the program: if the times of all earlier operations are equal within each class,
// so are the arrivals at the next one; a compute operation adds equal durations; a collective takes
// the latest of the same set of arrivals; an uneven exchange has equal matrices, equal arrivals and
// equal links at each position.
//
// `clock` is used only if `traffic` has uneven exchanges, and must then not be null. If no two
// ranks fold, `representative` has all ranks and `partitions` is empty.
Fold fold(const Program& program, const Durations& durations, const Traffic* traffic,
          const network::ExchangeClock* clock = nullptr);

}  // namespace moesim::engine
