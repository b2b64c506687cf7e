#pragma once

#include <cublas_v2.h>

#include <cstddef>
#include <span>
#include <string>

#include "kernels/base/cuda_check.hpp"
#include "kernels/base/gemm.hpp"

namespace moesim::kernels {

// Throws CudaError; a workspace that cannot be had counts as out of memory.
void check_cublas(cublasStatus_t status, const char* what);

// What CUDA would call it: a product that cuBLAS has no kernel for, or no memory, is no failure of
// the device.
cudaError_t code_of(cublasStatus_t status);

// cuBLAS on the current device.
class CublasHandle {
 public:
  // Loads the library. Throws Error (missing hardware) if it is not there, CudaError if it refuses.
  CublasHandle();
  ~CublasHandle();
  CublasHandle(const CublasHandle&) = delete;  // it owns the library's handle
  CublasHandle& operator=(const CublasHandle&) = delete;

  cublasHandle_t get() const { return handle_; }
  std::string version() const;  // "13.1.0"; "" if the library does not say

 private:
  cublasHandle_t handle_ = nullptr;
};

// Whether the cuBLAS that was found multiplies groups of different shapes in one call (12.5 and
// later, of the build and of the library).
bool has_grouped_gemm();

// Each throws CudaError when cuBLAS refuses.
//
// Products queue on the handle's stream. cublasSetStream takes the handle's workspace away, even
// where the stream stays the same (cuBLAS manual, cublasSetStream): a product without one cannot be
// captured in a graph, and may run another algorithm. So stream and workspace are set together.
void set_stream(cublasHandle_t cublas, cudaStream_t stream, void* workspace,
                std::size_t workspace_bytes);
// Does nothing if the handle is on this stream already, whose workspace it then keeps.
void use_stream(cublasHandle_t cublas, cudaStream_t stream);
void run_gemm(cublasHandle_t cublas, const Gemm& gemm, const void* left, const void* right,
              void* result, const GemmBatch& batch = {});

struct PlacedGemm {
  Gemm gemm;
  const void* left = nullptr;
  const void* right = nullptr;
  void* result = nullptr;
};
// Products of different shapes, all of one kind (transposes, accumulation, bf16 results), in one
// call. `table` is device memory of grouped_table_bytes(gemms.size()), written on the stream.
// Throws std::logic_error without has_grouped_gemm().
void run_grouped(cublasHandle_t cublas, std::span<const PlacedGemm> gemms, void* table);
constexpr std::size_t grouped_table_bytes(std::size_t gemms) { return 3 * gemms * sizeof(void*); }

}  // namespace moesim::kernels
