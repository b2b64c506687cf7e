#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace moesim::kernels {

// A CUDA call failed: which, with what code, on which device.
class CudaError : public std::runtime_error {
 public:
  CudaError(const std::string& message, cudaError_t code)
      : std::runtime_error(message), code_(code) {}
  cudaError_t code() const { return code_; }

 private:
  cudaError_t code_;
};

inline void check_cuda(cudaError_t code, const char* expression) {
  if (code == cudaSuccess) return;
  // The exception carries it: the check behind the next launch must not find it once more.
  cudaGetLastError();
  int device = -1;
  cudaGetDevice(&device);
  throw CudaError(std::string(expression) + " failed on device " + std::to_string(device) + ": " +
                      cudaGetErrorName(code) + ", " + cudaGetErrorString(code),
                  code);
}

// Whether a call worked whose failure is an answer. The runtime forgets the error, which the check
// behind the next launch would find.
inline bool worked(cudaError_t code) {
  if (code == cudaSuccess) return true;
  cudaGetLastError();
  return false;
}

}  // namespace moesim::kernels

#define MOESIM_CUDA(expression) ::moesim::kernels::check_cuda((expression), #expression)
