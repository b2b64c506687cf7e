#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/measure/devices/device.hpp"

namespace moesim::kernels::measure::cuda {

// cuBLASLt on the current device.
class CublasLtHandle {
 public:
  // Throws NotMeasurable with the reason: no cuBLASLt on this machine, or one that does not start.
  CublasLtHandle();
  ~CublasLtHandle();
  CublasLtHandle(const CublasLtHandle&) = delete;  // it owns the library's handle
  CublasLtHandle& operator=(const CublasLtHandle&) = delete;
  cublasLtHandle_t get() const { return handle_; }

 private:
  cublasLtHandle_t handle_ = nullptr;
};

// Y[m, n] = X[m, k] W[n, k]^T, row-major, X and W in e4m3, Y in bf16.
struct Fp8Shape {
  std::int64_t m = 0, n = 0, k = 0;
  bool by_block = false;  // scales as points/fp8_scales.hpp lays them out, else one per matrix
};
// All in device memory, aligned to 256 bytes; scales to 16.
struct Fp8Operands {
  const std::uint8_t* x = nullptr;
  const std::uint8_t* w = nullptr;
  const float* x_scales = nullptr;
  const float* w_scales = nullptr;
  std::uint16_t* y = nullptr;
};

// Why such a product cannot run on a device of this capability with a cuBLASLt of this version
// (as cublasLtGetVersion() says it: 130000); "" if it can, as far as its documentation says.
std::string fp8_trouble(bool by_block, int compute_major, int compute_minor, std::size_t version);

// One product by the algorithm that cuBLASLt's heuristic has first. Sums are in fp32 throughout:
// the fast accumulation of Hopper, whose sums keep fewer bits, is off.
class Fp8Product {
 public:
  // Throws NotMeasurable with cuBLASLt's words where it has no algorithm. `first` are the operands
  // of a call: it looks at where they lie. `handle` must outlive this.
  Fp8Product(const CublasLtHandle& handle, const Fp8Shape& shape, const Fp8Operands& first,
             std::size_t workspace_bytes);
  ~Fp8Product();
  Fp8Product(const Fp8Product&) = delete;  // it owns descriptors
  Fp8Product& operator=(const Fp8Product&) = delete;

  // Queues one call. `workspace` has as many bytes as the constructor was told. Throws CudaError.
  void run(const Fp8Operands& operands, void* workspace, cudaStream_t stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moesim::kernels::measure::cuda
