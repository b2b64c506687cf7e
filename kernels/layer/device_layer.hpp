#pragma once

#include <functional>
#include <optional>

#include "kernels/base/nvtx.hpp"
#include "kernels/experts/device_ffn.hpp"
#include "kernels/layer/run.hpp"

namespace moesim::kernels::layer {

// An all-to-all among the layer's ranks, queued on the stream (measure/cuda/libraries/nccl.hpp).
using Exchanger = std::function<void(const BlockExchange&, cudaStream_t)>;

// Carries a layer's stages out on the current device, on one stream, each in an NVTX range of its
// name. Nothing waits but read_counts(), which only routers with IR call.
class DeviceLayer : public LayerBackend {
 public:
  // As of DeviceFfn, the handle is put on the stream once. Throws std::logic_error at the first
  // exchange if there is no exchanger.
  DeviceLayer(cublasHandle_t cublas, cudaStream_t stream, Exchanger exchanger = {});
  ~DeviceLayer() override;
  DeviceLayer(const DeviceLayer&) = delete;  // it owns host memory
  DeviceLayer& operator=(const DeviceLayer&) = delete;

  // Called before and after each stage, to time them, say.
  std::function<void(const Stage&)> on_begin, on_end;

  void begin(const Stage& stage) override;
  void end(const Stage& stage) override;
  void gate(const routing::GateArguments& in) override;
  void assign(const routing::AssignArguments& in) override;
  void weigh(const routing::WeighArguments& in) override;
  void collect(const routing::CollectArguments& in) override;
  void router_backward(const routing::BackwardArguments& in) override;
  void permute(const exchange::DispatchArguments& in) override;
  void combine(const exchange::CombineArguments& in) override;
  void combine_backward(const exchange::CombineBackwardArguments& in) override;
  void one_hot(const exchange::OneHotArguments& in) override;
  void read_one_hot(const exchange::MaskGradientArguments& in) override;
  void gemm(const Gemm& gemm, const void* left, const void* right, void* result) override;
  void exchange(const BlockExchange& in) override;
  void narrow(const float* from, void* to, std::int64_t count) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  std::vector<std::int32_t> read_counts(const std::int32_t* from, int count) override;
  void multiply(const experts::ExpertGemm& call, const experts::FfnTensors& tensors) override;
  void activate(const experts::SwigluArguments& in) override;
  void activate_backward(const experts::SwigluBackwardArguments& in) override;
  void clear(void* memory, std::size_t bytes) override;

 private:
  cublasHandle_t cublas_;
  cudaStream_t stream_;
  Exchanger exchanger_;
  experts::DeviceFfn ffn_;
  std::optional<NvtxRange> range_;
  std::int32_t* counts_ = nullptr;  // pinned, of so many values
  int most_counts_ = 0;
};

}  // namespace moesim::kernels::layer
