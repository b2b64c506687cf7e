#pragma once

#include "kernels/base/vector.cuh"

namespace moesim::kernels::layer {

inline constexpr int narrow_threads = 256;

// fp32 to bf16, one element per thread and step of the grid: of logits' gradients, a few bytes.
MOESIM_KERNEL(narrow_threads)
narrow_floats(const float* from, Bfloat16* to, std::int64_t count) {
  const std::int64_t step = static_cast<std::int64_t>(grid_blocks()) * block_threads();
  std::int64_t at = static_cast<std::int64_t>(block_index()) * block_threads() + thread_index();
  for (; at < count; at += step) to[at] = to_bfloat16(load_constant(from + at));
}

}  // namespace moesim::kernels::layer
