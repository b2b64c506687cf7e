#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "sim/engine/engine.hpp"
#include "sim/engine/program.hpp"

// What the ways to run a program have in common.
namespace moesim::engine {

// The time of what has not happened yet.
inline constexpr Picoseconds unset{-1};
// An execution in which nothing has happened, each rank in its own column.
Execution unset_execution(const Program& program);

// The operations of each stream in program order, and where each rank stands in them.
class ProgramQueues {
 public:
  static constexpr int none = -1;

  // `program` outlives it.
  explicit ProgramQueues(const Program& program);

  // The operation that a rank runs in a stream, or runs next; none: it has run all.
  int head(int rank, std::size_t stream) const {
    const std::size_t place = places_[static_cast<std::size_t>(rank)][stream];
    return place == streams_[stream].size() ? none : streams_[stream][place];
  }
  // Moves on to the next one; returns the operation that it leaves. Precondition: not none.
  int pop(int rank, std::size_t stream) {
    return streams_[stream][places_[static_cast<std::size_t>(rank)][stream]++];
  }
  // Throws std::logic_error naming an operation that a rank has not run.
  void check_finished() const;

 private:
  const Program& program_;
  std::array<std::vector<int>, stream_count> streams_;         // operations
  std::vector<std::array<std::size_t, stream_count>> places_;  // [rank][stream]
};

}  // namespace moesim::engine
