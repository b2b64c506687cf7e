#include "kernels/experts/device_ffn.hpp"

#include <vector>

#include "kernels/base/nvtx.hpp"
#include "kernels/experts/launch.hpp"

namespace moesim::kernels::experts {

DeviceFfn::DeviceFfn(cublasHandle_t cublas, cudaStream_t stream)
    : cublas_(cublas), stream_(stream) {
  use_stream(cublas, stream);
}

void DeviceFfn::multiply(const ExpertGemm& call, const FfnTensors& tensors) {
  const NvtxRange range(call.name);
  std::vector<PlacedGemm> placed;
  for (const GemmBlock& block : call.blocks) {
    placed.push_back({block.gemm, tensors.element(call.left, block.left),
                      tensors.element(call.right, block.right),
                      tensors.element(call.result, block.result)});
  }
  if (call.form == GemmForm::grouped) {
    const std::size_t pointers = grouped_table_bytes(placed.size()) / sizeof(void*);
    // Freeing the smaller one waits for the device, once.
    if (table_.size() < pointers) table_ = DeviceBuffer<void*>(pointers);
    return run_grouped(cublas_, placed, table_.data());
  }
  if (call.form == GemmForm::strided_batched) {
    const PlacedGemm& first = placed.front();
    return run_gemm(cublas_, first.gemm, first.left, first.right, first.result, call.batch());
  }
  for (const PlacedGemm& one : placed) {
    run_gemm(cublas_, one.gemm, one.left, one.right, one.result);
  }
}

void DeviceFfn::activate(const SwigluArguments& in) { launch_swiglu(in, stream_); }

void DeviceFfn::activate_backward(const SwigluBackwardArguments& in) {
  launch_swiglu_backward(in, stream_);
}

void DeviceFfn::clear(void* memory, std::size_t bytes) {
  MOESIM_CUDA(cudaMemsetAsync(memory, 0, bytes, stream_));
}

}  // namespace moesim::kernels::experts
