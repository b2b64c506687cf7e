#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moesim::routing {

// The position of each expert, for experts that are not placed on the ranks in the order of their
// numbers. Position p is on rank p / (E / P) of a group; routing uses positions, so that the
// positions of a rank are always contiguous.
class ExpertPlacement {
 public:
  // expert_at[layer][position], each layer a permutation of 0 .. E - 1; further layers repeat from
  // the first. Throws UsageError naming `what` for anything else.
  ExpertPlacement(std::vector<std::vector<std::uint16_t>> expert_at, const std::string& what);

  std::size_t experts() const { return expert_at_.front().size(); }
  const std::vector<std::uint16_t>& expert_at(int layer) const {
    return expert_at_[static_cast<std::size_t>(layer) % expert_at_.size()];
  }
  const std::vector<std::uint16_t>& position_of(int layer) const {
    return position_of_[static_cast<std::size_t>(layer) % position_of_.size()];
  }
  std::uint64_t digest() const;

 private:
  std::vector<std::vector<std::uint16_t>> expert_at_,
      position_of_;  // [layer][position], [layer][expert]
};

// Reorders rows of E values, one per expert, to the order of the positions, in place.
template <typename Value>
void put_in_placement(const std::vector<std::uint16_t>& expert_at, std::vector<Value>& rows) {
  std::vector<Value> row(expert_at.size());
  for (std::size_t begin = 0; begin < rows.size(); begin += row.size()) {
    for (std::size_t position = 0; position < row.size(); ++position) {
      row[position] = rows[begin + expert_at[position]];
    }
    for (std::size_t position = 0; position < row.size(); ++position)
      rows[begin + position] = row[position];
  }
}

}  // namespace moesim::routing
