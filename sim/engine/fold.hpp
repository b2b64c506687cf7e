#pragma once

#include <vector>

#include "sim/engine/program.hpp"
#include "sim/network/exchange/exchange_clock.hpp"

namespace moesim::engine {

// A partition of the ranks of a program as the columns of a folded one see it.
struct FoldedPartition {
  Partition columns;              // groups of columns, and the group of each column
  std::vector<int> whole_groups;  // [group]: a group of the program it stands for
};

// Classes of ranks with equal times under exchanges that do not disturb each other.
struct Fold {
  std::vector<int> column_of;       // [rank]
  std::vector<int> representative;  // [column]: its lowest rank
  std::vector<FoldedPartition> partitions;
};

// The coarsest classes by colour refinement (as for graphs: Berkholz, Bonsma, Grohe 2017). Two
// ranks start in one class if each of their operations takes equally long, and each uneven exchange
// has an equal matrix in which they hold the same place, between members whom `clock` treats alike
// (equivalence_key(): links of equal rates and latencies, divided among domains and switches in one
// way, which groups that straddle nodes or have a slow link are not). Classes are then split until,
// in every partition, groups of ranks of one class hold the same classes (at the same places, where
// a matrix is exchanged). That is enough for equal times, by induction over the program: if the
// times of all earlier operations are equal within each class, so are the arrivals at the next one;
// a compute operation adds equal durations; a collective takes the latest of the same set of
// arrivals; an uneven exchange sees equal matrices, equal arrivals and equal links place by place.
//
// `clock` is read only where `traffic` has uneven exchanges, and must then be there. If no two
// ranks fold, `representative` has all ranks and `partitions` is empty.
Fold fold(const Program& program, const Durations& durations, const Traffic* traffic,
          const network::ExchangeClock* clock = nullptr);

}  // namespace moesim::engine
