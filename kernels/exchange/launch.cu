#include "kernels/exchange/launch.hpp"

#include <stdexcept>
#include <string>

#include "kernels/base/cuda_check.hpp"
#include "kernels/base/launch_limits.hpp"
#include "kernels/base/nvtx.hpp"
#include "kernels/exchange/einsum.hpp"
#include "kernels/exchange/one_hot.cuh"
#include "kernels/exchange/rows.cuh"

namespace moesim::kernels::exchange {

namespace {

template <typename Kernel, typename Arguments>
void launch(Kernel kernel, const Arguments& in, Stream stream) {
  if (in.map.tokens == 0 && in.map.block_rows == 0) return;
  // As many blocks as the device holds at once: the kernels stride over tokens.
  const int blocks = resident_blocks(reinterpret_cast<const void*>(kernel), rows_threads);
  kernel<<<static_cast<unsigned>(blocks), rows_threads, 0, stream>>>(in);
  MOESIM_CUDA(cudaGetLastError());
}

}  // namespace

void launch_dispatch(const DispatchArguments& in, Stream stream) {
  const NvtxRange range("permute");
  launch(dispatch_rows, in, stream);
}

void launch_combine(const CombineArguments& in, ElementType type, Stream stream) {
  const NvtxRange range("combine");
  if (type == ElementType::bfloat16) {
    launch(combine_rows<Bfloat16>, in, stream);
  } else {
    launch(combine_rows<float>, in, stream);
  }
}

void launch_combine_backward(const CombineBackwardArguments& in, ElementType type, Stream stream) {
  const NvtxRange range("combine backward");
  if (type == ElementType::bfloat16) {
    launch(combine_rows_backward<Bfloat16>, in, stream);
  } else {
    launch(combine_rows_backward<float>, in, stream);
  }
}

void launch_one_hot(const OneHotArguments& in, ElementType type, Stream stream) {
  const NvtxRange range("one-hot mask");
  const bool bfloat16 = type == ElementType::bfloat16;
  const std::int64_t columns = static_cast<std::int64_t>(in.map.experts) * in.map.block_rows;
  if (columns % (bfloat16 ? 8 : 4) != 0) {
    throw std::invalid_argument("masks of " + std::to_string(columns) +
                                " columns are no whole number of 16-byte pieces");
  }
  if (bfloat16) {
    launch(fill_one_hot<Bfloat16>, in, stream);
  } else {
    launch(fill_one_hot<float>, in, stream);
  }
}

void launch_read_one_hot(const MaskGradientArguments& in, ElementType type, Stream stream) {
  const NvtxRange range("mask gradient");
  if (type == ElementType::bfloat16) {
    launch(read_one_hot<Bfloat16>, in, stream);
  } else {
    launch(read_one_hot<float>, in, stream);
  }
}

int row_vectors(int hidden, ElementType type) {
  const int bytes = hidden * (type == ElementType::bfloat16 ? 2 : 4);
  if (hidden < 1 || bytes % 16 != 0) {
    throw std::invalid_argument("rows of " + std::to_string(hidden) +
                                " elements are no whole number of 16-byte pieces: choose a hidden "
                                "size that is a multiple of 8 (bf16) or 4 (fp32)");
  }
  return bytes / 16;
}

}  // namespace moesim::kernels::exchange
