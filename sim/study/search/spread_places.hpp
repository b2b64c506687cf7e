#pragma once

#include <cstddef>
#include <vector>

namespace moesim::study {

// Some places of a list of `count`, in order: the first eight, then each half as far again. For
// what is likely near the beginning and takes long to look at.
inline std::vector<std::size_t> spread_places(std::size_t count) {
  constexpr std::size_t dense = 8;
  std::vector<std::size_t> places;
  for (std::size_t at = 0; at < count; at = at < dense ? at + 1 : at + at / 2) places.push_back(at);
  return places;
}

}  // namespace moesim::study
