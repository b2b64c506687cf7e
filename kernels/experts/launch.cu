#include "kernels/experts/launch.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/base/cuda_check.hpp"
#include "kernels/base/launch_limits.hpp"
#include "kernels/base/nvtx.hpp"
#include "kernels/experts/swiglu.cuh"

namespace moesim::kernels::experts {
namespace {

template <typename Kernel, typename Arguments>
void launch(Kernel kernel, const Arguments& in, Stream stream) {
  if (in.rows == 0) return;
  const std::int64_t pieces = in.rows * (in.ffn / 8);
  // The grid's last step must not pass 32 bits.
  if (in.ffn % 8 != 0 || pieces >= std::int64_t{1} << 31) {
    throw std::invalid_argument("an activation of " + std::to_string(in.rows) + " rows of " +
                                std::to_string(in.ffn) +
                                ": rows are multiples of 8 and together below 2^34 elements");
  }
  const std::int64_t wanted = (pieces + swiglu_threads - 1) / swiglu_threads;
  const std::int64_t most = resident_blocks(reinterpret_cast<const void*>(kernel), swiglu_threads);
  kernel<<<static_cast<unsigned>(std::min(wanted, most)), swiglu_threads, 0, stream>>>(in);
  MOESIM_CUDA(cudaGetLastError());
}

}  // namespace

void launch_swiglu(const SwigluArguments& in, Stream stream) {
  const NvtxRange range("activation");
  launch(swiglu, in, stream);
}

void launch_swiglu_backward(const SwigluBackwardArguments& in, Stream stream) {
  const NvtxRange range("activation backward");
  launch(swiglu_backward, in, stream);
}

}  // namespace moesim::kernels::experts
