#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <string>
#include <vector>

// A CUDA runtime without a device, linked in place of the real one: memory is the host's, and every
// call is done when it returns. Each thread has one of its own, with the last error as the real one
// keeps it.
struct FakeRuntime {
  std::vector<std::string> calls;            // those that concern a stream, in order
  cudaError_t last = cudaSuccess;            // what cudaGetLastError() gives next
  cudaError_t malloc = cudaSuccess;          // what cudaMalloc() gives
  cudaError_t end_capture = cudaSuccess;     // what cudaStreamEndCapture() gives
  bool impatient = false;                    // a held stream frees itself at once
  std::map<cudaDeviceAttr, int> attributes;  // the others are refused
};
FakeRuntime& fake_runtime();  // that of this thread
