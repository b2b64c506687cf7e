#pragma once

namespace moesim::kernels {

// Pairs of places to compare, one after another: what sorts `count` values, a power of 2.
template <int count>
struct SortingNetwork {
  struct Pair {
    int low = 0;
    int high = 0;
  };
  Pair pair[count * count] = {};
  int pairs = 0;
};

// Batcher's odd-even merge sort (Knuth, The Art of Computer Programming 3, 5.2.2, algorithm M).
template <int count>
constexpr SortingNetwork<count> odd_even_merge_sort() {
  SortingNetwork<count> network;
  for (int length = 1; length < count; length *= 2) {
    for (int step = length; step >= 1; step /= 2) {
      for (int first = step % length; first + step < count; first += 2 * step) {
        for (int low = first; low < first + step && low + step < count; ++low) {
          if (low / (2 * length) != (low + step) / (2 * length)) continue;
          network.pair[network.pairs].low = low;
          network.pair[network.pairs].high = low + step;
          ++network.pairs;
        }
      }
    }
  }
  return network;
}

template <int count>
inline constexpr SortingNetwork<count> sorting_network = odd_even_merge_sort<count>();

}  // namespace moesim::kernels
