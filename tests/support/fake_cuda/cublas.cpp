// A libcublas that computes nothing: a handle's stream and workspace behave as its manual says, and
// FAKE_CUBLAS_LOG names a file that gets a line per product with the two it would use. FAKE_CUBLAS
// is the status of its products.
#include <cublas_v2.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct Handle {
  cudaStream_t stream;
  void* workspace;
};

Handle& of(cublasHandle_t handle) { return *reinterpret_cast<Handle*>(handle); }

cublasStatus_t log(const char* what, cublasHandle_t handle) {
  const char* status = std::getenv("FAKE_CUBLAS");
  if (status != nullptr && std::strcmp(what, "set") != 0) {
    return static_cast<cublasStatus_t>(std::atoi(status));
  }
  const char* path = std::getenv("FAKE_CUBLAS_LOG");
  if (path == nullptr) return CUBLAS_STATUS_SUCCESS;
  std::FILE* file = std::fopen(path, "a");
  std::fprintf(file, "%s stream %ju workspace %ju\n", what,
               reinterpret_cast<std::uintptr_t>(of(handle).stream),
               reinterpret_cast<std::uintptr_t>(of(handle).workspace));
  std::fclose(file);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = reinterpret_cast<cublasHandle_t>(new Handle{});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete &of(handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int* version) {
  *version = CUBLAS_VERSION;
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasGetStatusName(cublasStatus_t) { return "as the stand-in was told"; }
const char* cublasGetStatusString(cublasStatus_t) { return "as the stand-in was told"; }
cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t* stream) {
  *stream = of(handle).stream;
  return CUBLAS_STATUS_SUCCESS;
}
// "Unconditionally resets the cuBLAS library workspace back to the default workspace pool."
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  of(handle) = {stream, nullptr};
  return log("set", handle);
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* memory, std::size_t) {
  of(handle).workspace = memory;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int, int,
                            int, const void*, const void*, cudaDataType, int, const void*,
                            cudaDataType, int, const void*, void*, cudaDataType, int,
                            cublasComputeType_t, cublasGemmAlgo_t) {
  return log("one", handle);
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t,
                                          cublasOperation_t, int, int, int, const void*,
                                          const void*, cudaDataType, int, long long, const void*,
                                          cudaDataType, int, long long, const void*, void*,
                                          cudaDataType, int, long long, int, cublasComputeType_t,
                                          cublasGemmAlgo_t) {
  return log("batched", handle);
}
}
