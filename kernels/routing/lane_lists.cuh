#pragma once

#include <utility>

#include "kernels/base/sorting_network.hpp"
#include "kernels/routing/token_logits.cuh"

// The largest of many logits a lane, where many are wanted: a lane sorts its values once and then
// only shows its largest one, so that a choice is two warp reductions and one read of shared memory
// by the lane that had it.
namespace moesim::kernels::routing {

struct LaneEntry {
  std::uint32_t key;  // ordered_of() the logit; 0: no expert
  std::uint32_t expert;
};

// Descending by key; equal keys in any order.
template <int values>
struct LaneList {
  LaneEntry entry[values];

  template <int low, int high>
  MOESIM_DEVICE void order() {
    const LaneEntry a = entry[low];
    const LaneEntry b = entry[high];
    const bool swapped = b.key > a.key;
    entry[low].key = swapped ? b.key : a.key;
    entry[low].expert = swapped ? b.expert : a.expert;
    entry[high].key = swapped ? a.key : b.key;
    entry[high].expert = swapped ? a.expert : b.expert;
  }
  template <int... pair>
  MOESIM_DEVICE void sort(std::integer_sequence<int, pair...>) {
    (order<sorting_network<values>.pair[pair].low, sorting_network<values>.pair[pair].high>(), ...);
  }
  MOESIM_DEVICE void sort() {
    sort(std::make_integer_sequence<int, sorting_network<values>.pairs>());
  }
  MOESIM_DEVICE bool has_equal_keys() const {
    bool equal = false;
    for (int at = 1; at < values; ++at) {
      equal = equal || (entry[at].key == entry[at - 1].key && entry[at].key != 0);
    }
    return equal;
  }
};

// As TokenLogits::largest() over all experts; `place` is this lane's entry in an array of
// [value, thread of the block]. False, for all lanes, where it would not pay or where a lane has
// two equal logits, whose order the network does not keep.
template <int lanes, int values>
MOESIM_DEVICE bool largest_of_lists(const TokenLogits<lanes, values>& logits, LaneEntry* place,
                                    int experts, int wanted, std::uint16_t& expert, float& chosen) {
  if constexpr (lanes != warp_lanes || (values != 4 && values != 8)) {
    return false;
  } else {
    if (place == nullptr || wanted <= values / 4) return false;
    LaneList<values> list;
    for (int value = 0; value < values; ++value) {
      const int at = logits.expert_at(value);
      list.entry[value].key = at < experts ? ordered_of(logits.logit[value]) : 0;
      list.entry[value].expert = static_cast<std::uint32_t>(at);
    }
    list.sort();
    if (ballot(list.has_equal_keys()) != 0) return false;
    for (int value = 1; value < values; ++value) {
      place[value * block_threads()] = list.entry[value];
    }
    LaneEntry head = list.entry[0];
    int next = 1;
    for (int choice = 0; choice < wanted; ++choice) {
      const std::uint32_t top = warp_max(head.key);
      const std::uint32_t winner = warp_min(head.key == top ? head.expert : 0xffffffffU);
      if (lane_index() == choice) {
        expert = static_cast<std::uint16_t>(winner);
        chosen = unordered(top);
      }
      if (head.expert != winner) continue;
      if (next < values) {
        head = place[next * block_threads()];
      } else {
        head.key = 0;
      }
      ++next;
    }
    return true;
  }
}

}  // namespace moesim::kernels::routing
