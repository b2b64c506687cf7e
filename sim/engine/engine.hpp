#pragma once

#include <vector>

#include "sim/engine/program.hpp"
#include "sim/engine/timeline.hpp"
#include "sim/network/topology/fabric.hpp"

namespace moesim::engine {

// Time in which an operation did not get on because another one beside it took what both need. On
// the path of an execution it counts as that one's.
struct LostTime {
  int operation = 0;
  int to = 0;
  Picoseconds time;
};

// One execution of a program: when every operation started and ended. Equivalent ranks share a
// column: times are indexed [operation * columns + column], use at(). Unfolded, every rank is its
// own column.
struct Execution {
  int ranks = 0;
  int columns = 0;
  std::vector<int> column_of;      // [rank], empty: unfolded
  std::vector<Picoseconds> start;  // compute: began; collective: this rank arrived
  std::vector<Picoseconds> finish;
  // Collective: all members had arrived. Compute and uneven exchanges: as start.
  std::vector<Picoseconds> began;
  std::vector<LostTime> lost;  // in order of LostTime::operation; the runs leave it empty

  std::size_t at(int operation, int rank) const {
    const int column = column_of.empty() ? rank : column_of[static_cast<std::size_t>(rank)];
    return static_cast<std::size_t>(operation) * static_cast<std::size_t>(columns) +
           static_cast<std::size_t>(column);
  }
  Picoseconds end_of(int rank) const;  // the last finish on a rank
  int slowest_rank() const;            // the lowest of the ranks that end last
};

// Runs the program: every rank runs the operations of its streams in order; a collective begins
// when its last member arrives and ends when the fabric reports it. Only exchanges are events;
// compute between two exchanges needs no event, because nothing can delay it. Deterministic. Uneven
// exchanges, if `traffic` is given, are passed to the fabric member by member, each when it
// arrives. Throws std::logic_error if the program cannot finish (a dependency on a later
// operation).
Execution run(const Program& program, const Durations& durations, network::Fabric& fabric,
              const Traffic* traffic = nullptr);

// Every operation of every rank as a bar, in order of rank, then program. `categories` names the
// values of Operation::category.
Timeline timeline(const Program& program, const Execution& execution,
                  const std::vector<std::string>& categories);

}  // namespace moesim::engine
