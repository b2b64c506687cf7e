#pragma once

#include <cstddef>
#include <cstdint>

#include "sim/base/simd.hpp"

namespace moesim::routing {

// How many edges lie below a number: the quantile of a count whose distribution function is a list
// of edges.
struct EdgeCountKernels {
  // counts[lane] = first + how many of the `count` edges are less than z[lane], for the 16 lanes of
  // a tile.
  void (*count_edges)(const float* z, const float* edges, std::size_t count, std::int32_t first,
                      std::int32_t* counts);
};

const EdgeCountKernels& edge_count_kernels(SimdLevel level);

}  // namespace moesim::routing
