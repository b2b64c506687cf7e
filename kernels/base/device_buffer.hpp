#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "kernels/base/cuda_check.hpp"

namespace moesim::kernels {

// Device memory for `size()` values, aligned to 256 bytes. Copying it would free it twice.
template <typename Value>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::size_t size) : size_(size) {
    if (size > 0) MOESIM_CUDA(cudaMalloc(reinterpret_cast<void**>(&data_), size * sizeof(Value)));
  }
  explicit DeviceBuffer(const std::vector<Value>& values) : DeviceBuffer(values.size()) {
    if (size_ == 0) return;
    MOESIM_CUDA(cudaMemcpy(data_, values.data(), size_ * sizeof(Value), cudaMemcpyHostToDevice));
    settle();
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  Value* data() const { return data_; }
  std::size_t size() const { return size_; }
  // Waits for all work of the device.
  std::vector<Value> download() const {
    std::vector<Value> values(size_);
    MOESIM_CUDA(cudaDeviceSynchronize());
    if (size_ == 0) return values;
    MOESIM_CUDA(cudaMemcpy(values.data(), data_, size_ * sizeof(Value), cudaMemcpyDeviceToHost));
    return values;
  }
  // Every byte; it is done when this returns.
  void fill(int byte) {
    if (size_ > 0) MOESIM_CUDA(cudaMemset(data_, byte, size_ * sizeof(Value)));
    settle();
  }

 private:
  // The default stream, which sets and copies from pageable memory may still be busy on, is not
  // ordered with the non-blocking streams that kernels run on.
  static void settle() { MOESIM_CUDA(cudaDeviceSynchronize()); }

  Value* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace moesim::kernels
