#include "kernels/layer/launch.hpp"

#include <algorithm>

#include "kernels/base/cuda_check.hpp"
#include "kernels/layer/narrow.cuh"

namespace moesim::kernels::layer {

void launch_narrow(const float* from, void* to, std::int64_t count, CUstream_st* stream) {
  if (count == 0) return;
  constexpr std::int64_t most_blocks = 2048;  // more than a wave of any device
  const std::int64_t blocks = (count + narrow_threads - 1) / narrow_threads;
  narrow_floats<<<static_cast<unsigned>(std::min(blocks, most_blocks)), narrow_threads, 0,
                  stream>>>(from, static_cast<Bfloat16*>(to), count);
  MOESIM_CUDA(cudaGetLastError());
}

}  // namespace moesim::kernels::layer
