#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "sim/base/byte_matrix.hpp"
#include "sim/base/units.hpp"
#include "sim/network/topology/topology.hpp"

namespace moesim::network {

// The bytes of one of `slices` pieces that differ by at most one byte.
constexpr std::int64_t slice_of(std::int64_t bytes, int slice, int slices) {
  // bytes n / slices, rounded down, without the product: q n + r n / slices.
  const std::int64_t whole = bytes / slices;
  const std::int64_t rest = bytes % slices;
  return whole + rest * (slice + 1) / slices - rest * slice / slices;
}

// Messages and what each waits for: a schedule written down. Steps are numbered as they are added;
// a step that sends nothing (a join) ends when all that it waits for has ended.
class MessagePlan {
 public:
  // Begins at `earliest`, or when the last it waits for has ended if that is later. A message of
  // 0 bytes or to itself is a join that no rank's finish counts.
  int add(int source, int destination, std::int64_t bytes, Picoseconds earliest = Picoseconds(0));
  int add_join(Picoseconds earliest = Picoseconds(0)) { return add(0, 0, 0, earliest); }
  void wait(int step, int earlier) { waits_.emplace_back(earlier, step); }
  // What each pair of ranks exchanges in all messages.
  ByteMatrix bytes(int ranks) const;
  std::size_t steps() const { return messages_.size(); }

  struct Times {
    Picoseconds makespan;
    std::vector<Picoseconds> rank_finish;  // 0 for a rank that no message touches
  };
  // Told now and then how many of all steps have ended.
  using Progress = std::function<void(std::size_t ended, std::size_t steps)>;
  // Runs all steps on the links of `topology`, which all messages share by max-min. A cycle of
  // waits is a programmer error.
  Times run(const Topology& topology, const Progress& progress = {}) const;

 private:
  struct Message {
    int source;
    int destination;
    std::int64_t bytes;
    Picoseconds earliest;
    bool joins() const { return bytes == 0 || source == destination; }
  };

  std::vector<Message> messages_;
  std::vector<std::pair<int, int>> waits_;  // earlier, later
};

}  // namespace moesim::network
