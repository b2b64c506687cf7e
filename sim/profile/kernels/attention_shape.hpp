#pragma once

#include <cstdint>

namespace moesim::profile {

// Causal self-attention of `batch` sequences, forward or backward.
struct AttentionShape {
  std::int64_t batch = 1;
  std::int64_t sequence = 1;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 128;
};

}  // namespace moesim::profile
