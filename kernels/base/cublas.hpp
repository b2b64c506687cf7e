#pragma once

#include <cublas_v2.h>

#include <cstddef>
#include <span>
#include <string>

#include "kernels/base/cuda_check.hpp"
#include "kernels/base/gemm.hpp"

namespace moesim::kernels {

// Throws CudaError; a workspace that cannot be had counts as out of memory.
inline void check_cublas(cublasStatus_t status, const char* expression) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw CudaError(
      std::string(expression) + " failed: " + cublasGetStatusName(status) + ", " +
          cublasGetStatusString(status),
      status == CUBLAS_STATUS_ALLOC_FAILED ? cudaErrorMemoryAllocation : cudaErrorUnknown);
}

#define MOESIM_CUBLAS(expression) ::moesim::kernels::check_cublas((expression), #expression)

// Whether this build's cuBLAS multiplies groups of different shapes in one call (12.5 and later).
#if CUBLAS_VERSION >= 120500
inline constexpr bool has_grouped_gemm = true;
#else
inline constexpr bool has_grouped_gemm = false;
#endif

// Each queues on the handle's stream and throws CudaError when cuBLAS refuses.
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
// Throws std::logic_error in a build without has_grouped_gemm.
void run_grouped(cublasHandle_t cublas, std::span<const PlacedGemm> gemms, void* table);
constexpr std::size_t grouped_table_bytes(std::size_t gemms) { return 3 * gemms * sizeof(void*); }

}  // namespace moesim::kernels
