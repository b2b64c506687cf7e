#pragma once

#include <cstddef>
#include <vector>

#include "sim/routing/tokens/tile_kernels.hpp"

namespace moesim::routing {

// Rows of 16 floats, each in a cache line of its own: kernels read whole rows, and a row in two
// lines takes twice as long.
class TileRows {
 public:
  void grow(std::size_t rows) {
    if (rows_.size() < rows) rows_.resize(rows);
  }
  float* data() { return reinterpret_cast<float*>(rows_.data()); }
  const float* data() const { return reinterpret_cast<const float*>(rows_.data()); }
  float operator[](std::size_t at) const { return data()[at]; }

 private:
  struct alignas(64) Row {
    float token[tile_tokens];
  };
  std::vector<Row> rows_;
};

}  // namespace moesim::routing
