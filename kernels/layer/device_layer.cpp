#include "kernels/layer/device_layer.hpp"

#include <stdexcept>

#include "kernels/exchange/einsum.hpp"
#include "kernels/layer/launch.hpp"
#include "kernels/routing/launch.hpp"

namespace moesim::kernels::layer {

using exchange::ElementType;

DeviceLayer::DeviceLayer(cublasHandle_t cublas, cudaStream_t stream, Exchanger exchanger)
    : cublas_(cublas), stream_(stream), exchanger_(std::move(exchanger)), ffn_(cublas, stream) {}

DeviceLayer::~DeviceLayer() { cudaFreeHost(counts_); }

void DeviceLayer::begin(const Stage& stage) {
  range_.emplace(stage.name);
  if (on_begin) on_begin(stage);
}

void DeviceLayer::end(const Stage& stage) {
  if (on_end) on_end(stage);
  range_.reset();
}

void DeviceLayer::gate(const routing::GateArguments& in) {
  routing::launch_gate(in, true, stream_);
}
void DeviceLayer::assign(const routing::AssignArguments& in) {
  routing::launch_assign(in, stream_);
}
void DeviceLayer::weigh(const routing::WeighArguments& in) { routing::launch_weigh(in, stream_); }
void DeviceLayer::collect(const routing::CollectArguments& in) {
  routing::launch_collect(in, stream_);
}
void DeviceLayer::router_backward(const routing::BackwardArguments& in) {
  routing::launch_backward(in, stream_);
}

void DeviceLayer::permute(const exchange::DispatchArguments& in) {
  exchange::launch_dispatch(in, stream_);
}
void DeviceLayer::combine(const exchange::CombineArguments& in) {
  exchange::launch_combine(in, ElementType::bfloat16, stream_);
}
void DeviceLayer::combine_backward(const exchange::CombineBackwardArguments& in) {
  exchange::launch_combine_backward(in, ElementType::bfloat16, stream_);
}
void DeviceLayer::one_hot(const exchange::OneHotArguments& in) {
  exchange::launch_one_hot(in, ElementType::bfloat16, stream_);
}
void DeviceLayer::read_one_hot(const exchange::MaskGradientArguments& in) {
  exchange::launch_read_one_hot(in, ElementType::bfloat16, stream_);
}

void DeviceLayer::gemm(const Gemm& gemm, const void* left, const void* right, void* result) {
  run_gemm(cublas_, gemm, left, right, result);
}

void DeviceLayer::exchange(const BlockExchange& in) {
  if (!exchanger_) throw std::logic_error("a layer of several ranks has nothing to exchange with");
  exchanger_(in, stream_);
}

void DeviceLayer::narrow(const float* from, void* to, std::int64_t count) {
  launch_narrow(from, to, count, stream_);
}

void DeviceLayer::copy(void* to, const void* from, std::size_t bytes) {
  MOESIM_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_));
}

std::vector<std::int32_t> DeviceLayer::read_counts(const std::int32_t* from, int count) {
  if (count > most_counts_) {
    cudaFreeHost(counts_);
    counts_ = nullptr;
    MOESIM_CUDA(cudaMallocHost(reinterpret_cast<void**>(&counts_),
                               static_cast<std::size_t>(count) * sizeof *counts_));
    most_counts_ = count;
  }
  MOESIM_CUDA(cudaMemcpyAsync(counts_, from, static_cast<std::size_t>(count) * sizeof *counts_,
                              cudaMemcpyDeviceToHost, stream_));
  MOESIM_CUDA(cudaStreamSynchronize(stream_));
  return {counts_, counts_ + count};
}

void DeviceLayer::multiply(const experts::ExpertGemm& call, const experts::FfnTensors& tensors) {
  ffn_.multiply(call, tensors);
}
void DeviceLayer::activate(const experts::SwigluArguments& in) { ffn_.activate(in); }
void DeviceLayer::activate_backward(const experts::SwigluBackwardArguments& in) {
  ffn_.activate_backward(in);
}
void DeviceLayer::clear(void* memory, std::size_t bytes) { ffn_.clear(memory, bytes); }

}  // namespace moesim::kernels::layer
