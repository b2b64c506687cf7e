#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moesim::routing {

// Which expert has which place, where experts do not lie on the ranks in the order of their
// numbers. Place p is on rank p / (E / P) of a group; routing counts by places, so that a rank's
// own are always neighbours.
class ExpertOrder {
 public:
  // expert_at[layer][place], each layer a permutation of 0 .. E - 1; layers beyond the last start
  // again. Throws UsageError naming `what` for anything else.
  ExpertOrder(std::vector<std::vector<std::uint16_t>> expert_at, const std::string& what);

  std::size_t experts() const { return expert_at_.front().size(); }
  const std::vector<std::uint16_t>& expert_at(int layer) const {
    return expert_at_[static_cast<std::size_t>(layer) % expert_at_.size()];
  }
  const std::vector<std::uint16_t>& place_of(int layer) const {
    return place_of_[static_cast<std::size_t>(layer) % place_of_.size()];
  }
  std::uint64_t digest() const;

 private:
  std::vector<std::vector<std::uint16_t>> expert_at_, place_of_;  // [layer][place], [layer][expert]
};

// Rows of E values, one per expert, into the order of the places, in place.
template <typename Value>
void put_in_places(const std::vector<std::uint16_t>& expert_at, std::vector<Value>& rows) {
  std::vector<Value> row(expert_at.size());
  for (std::size_t begin = 0; begin < rows.size(); begin += row.size()) {
    for (std::size_t place = 0; place < row.size(); ++place) {
      row[place] = rows[begin + expert_at[place]];
    }
    for (std::size_t place = 0; place < row.size(); ++place) rows[begin + place] = row[place];
  }
}

}  // namespace moesim::routing
