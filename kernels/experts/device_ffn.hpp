#pragma once

#include "kernels/base/cublas.hpp"
#include "kernels/base/device_buffer.hpp"
#include "kernels/experts/ffn.hpp"

namespace moesim::kernels::experts {

// Carries plans out on the current device, on one stream; nothing waits.
class DeviceFfn : public FfnBackend {
 public:
  // Puts the handle on the stream, once; both must outlive this object, and whoever moves the
  // handle to another stream must bring it back with its workspace before the next call.
  DeviceFfn(cublasHandle_t cublas, cudaStream_t stream);

  void multiply(const ExpertGemm& call, const FfnTensors& tensors) override;
  void activate(const SwigluArguments& in) override;
  void activate_backward(const SwigluBackwardArguments& in) override;
  void clear(void* memory, std::size_t bytes) override;

 private:
  cublasHandle_t cublas_;
  cudaStream_t stream_;
  DeviceBuffer<void*> table_;  // of grouped calls; grows to the largest
};

}  // namespace moesim::kernels::experts
