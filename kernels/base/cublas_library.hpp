#pragma once

#include <cublas_v2.h>

#include <string>

namespace moesim::kernels {

// The header overloads these two for C++: the library's own are those that take a compute type.
using CublasGemmEx = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int,
                                        int, int, const void*, const void*, cudaDataType, int,
                                        const void*, cudaDataType, int, const void*, void*,
                                        cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t);
using CublasGemmStridedBatchedEx = cublasStatus_t (*)(
    cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*, const void*,
    cudaDataType, int, long long, const void*, cudaDataType, int, long long, const void*, void*,
    cudaDataType, int, long long, int, cublasComputeType_t, cublasGemmAlgo_t);
// Does not compile where a header declares them otherwise.
static_assert(sizeof(static_cast<CublasGemmEx>(&::cublasGemmEx)) > 0);
static_assert(sizeof(static_cast<CublasGemmStridedBatchedEx>(&::cublasGemmStridedBatchedEx)) > 0);

// cuBLAS's functions in use, of the library found at run time.
struct CublasLibrary {
  decltype(&::cublasCreate) create = nullptr;
  decltype(&::cublasDestroy) destroy = nullptr;
  decltype(&::cublasGetVersion) get_version = nullptr;
  decltype(&::cublasGetStatusName) status_name = nullptr;
  decltype(&::cublasGetStatusString) status_string = nullptr;
  decltype(&::cublasGetStream) get_stream = nullptr;
  decltype(&::cublasSetStream) set_stream = nullptr;
  decltype(&::cublasSetWorkspace) set_workspace = nullptr;
  CublasGemmEx gemm = nullptr;
  CublasGemmStridedBatchedEx gemm_strided_batched = nullptr;
#if CUBLAS_VERSION >= 120500
  decltype(&::cublasGemmGroupedBatchedEx) gemm_grouped_batched = nullptr;  // null before 12.5
#endif
  std::string trouble;  // "": usable
};

// The major version that this build was made for, loaded once; MOESIM_CUBLAS_LIBRARY names the
// file, if it is set. Does not throw: look at `trouble` first.
const CublasLibrary& cublas_library();

}  // namespace moesim::kernels
