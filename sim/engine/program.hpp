#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sim/base/byte_matrix.hpp"
#include "sim/base/units.hpp"

namespace moesim::engine {

// Exchanges of two streams run at the same time, as those of two NCCL communicators.
enum class StreamKind : std::uint8_t { compute, communication, gradients };
constexpr std::size_t stream_count = 3;

// One operation of the program that every rank runs (SPMD). Operations of a stream run in program
// order, one at a time, as on a CUDA stream; `after` lists further operations of the same rank that
// must have finished, all of them earlier in the program.
struct Operation {
  std::string name;  // Kineto-like: "expert_ffn", "nccl:all_to_all"
  StreamKind stream = StreamKind::compute;
  int category = 0;  // defined by the caller: the part of the step that the time counts to
  int layer = -1;    // -1: belongs to no layer
  int groups = -1;   // communication: index into Program::partitions; compute: -1
  std::vector<int> after;
};

// A partition of the ranks into the groups of one kind of collective.
struct Partition {
  std::vector<std::vector<int>> groups;  // ranks of each group
  std::vector<int> group_of;             // [rank]
};
// Groups as consecutive blocks of `size` ranks, or as strided sets {r, r + stride, ...}.
Partition blocks(int ranks, int size);
Partition strided(int ranks, int stride);

struct Program {
  int ranks = 0;
  std::vector<Operation> operations;
  std::vector<Partition> partitions;

  int add(Operation operation);  // returns its index
};

// How long each operation takes: the same on every rank (uniform), or rank by rank where
// per_rank[operation] is not empty. For a collective: its duration on idle links, taken from the
// first rank of the group.
struct Durations {
  std::vector<Picoseconds> uniform;                // [operation]
  std::vector<std::vector<Picoseconds>> per_rank;  // [operation][rank], or empty
  // [operation] collectives that are skipped: each rank finishes one on arrival and waits for no
  // other rank. Empty: none is skipped.
  std::vector<bool> skipped;

  bool skips(int operation) const {
    return !skipped.empty() && skipped[static_cast<std::size_t>(operation)];
  }

  Picoseconds of(int operation, int rank) const {
    const auto& ranks = per_rank[static_cast<std::size_t>(operation)];
    return ranks.empty() ? uniform[static_cast<std::size_t>(operation)]
                         : ranks[static_cast<std::size_t>(rank)];
  }
};

// The byte matrices of the uneven exchanges of a program. They are requested one at a time, when an
// exchange is timed, so that a step never holds all of them in memory.
class Traffic {
 public:
  virtual ~Traffic() = default;
  // Whether the communication operation is an exchange with a matrix; others take their given
  // duration.
  virtual bool is_uneven(int operation) const = 0;
  // Writes the bytes that the members of a group send each other, in the order of the group; the
  // caller gives `bytes` as many ranks as the group has members.
  virtual void fill(int operation, int group, ByteMatrix& bytes) const = 0;
  // Groups of one operation with the same pattern have the same matrix.
  virtual int pattern(int /*operation*/, int group) const { return group; }
};

}  // namespace moesim::engine
