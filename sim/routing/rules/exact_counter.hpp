#pragma once

#include <cstdint>
#include <span>

#include "sim/base/random.hpp"

namespace moesim::routing {

// Counts how many tokens of a GPU have each expert, of a router without a gate whose tokens follow
// from the GPU's random stream: the counts of the tokens that such a router routes. Keeps what it
// needs again in another layer; use one per thread.
class ExactCounter {
 public:
  virtual ~ExactCounter() = default;

  // Writes the counts of the `tokens` of a GPU in a layer to counts[expert], which sum to `tokens`.
  // `gpu`: seed, replica, layer and rank of its stream; the purpose is the router's.
  virtual void count(const StreamKey& gpu, std::int64_t tokens, std::span<std::int32_t> counts) = 0;
};

}  // namespace moesim::routing
