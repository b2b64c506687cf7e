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

template <typename Kernel, typename Arguments, typename... More>
void launch(Kernel kernel, const Arguments& in, Stream stream, std::size_t shared_bytes = 0,
            const More&... more) {
  if (in.map.tokens == 0 && in.map.block_rows == 0) return;
  const auto* const address = reinterpret_cast<const void*>(kernel);
  if (shared_bytes > 0) allow_shared_memory(address, shared_bytes);
  // As many blocks as the device holds at once: the kernels stride over tokens.
  const int blocks = resident_blocks(address, rows_threads, shared_bytes);
  kernel<<<static_cast<unsigned>(blocks), rows_threads, shared_bytes, stream>>>(in, more...);
  MOESIM_CUDA(cudaGetLastError());
}

}  // namespace

void launch_dispatch(const DispatchArguments& in, Stream stream) {
  const NvtxRange range("permute");
  launch(dispatch_rows, in, stream);
}

void launch_weigh_and_dispatch(const routing::WeighArguments& weigh, const DispatchArguments& in,
                               Stream stream) {
  const NvtxRange range("weigh and permute");
  if (weigh.local_places > 0) {
    throw std::invalid_argument("weights with IR take a launch of their own before the permute");
  }
  launch(weigh_and_dispatch_rows, in, stream, 0, weigh);
}

void launch_combine(const CombineArguments& in, ElementType type, Stream stream) {
  const NvtxRange range("combine");
  if (type == ElementType::bfloat16) {
    launch(combine_rows<Bfloat16>, in, stream, combine_shared_bytes);
  } else {
    launch(combine_rows<float>, in, stream, combine_shared_bytes);
  }
}

void launch_combine_backward(const CombineBackwardArguments& in, ElementType type, Stream stream) {
  const NvtxRange range("combine backward");
  if (type == ElementType::bfloat16) {
    launch(combine_rows_backward<Bfloat16>, in, stream, combine_backward_shared_bytes);
  } else {
    launch(combine_rows_backward<float>, in, stream, combine_backward_shared_bytes);
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
