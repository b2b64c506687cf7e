#pragma once

#include <cstdint>

struct CUstream_st;

namespace moesim::kernels::layer {

// `count` floats at `from` to bf16 at `to`, on the device; nothing waits. Throws CudaError when the
// launch is refused.
void launch_narrow(const float* from, void* to, std::int64_t count, CUstream_st* stream);

}  // namespace moesim::kernels::layer
