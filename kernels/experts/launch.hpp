#pragma once

#include "kernels/experts/arguments.hpp"

struct CUstream_st;

// Launches of the gated activation; nothing waits. Throw CudaError when a launch is refused and
// std::invalid_argument for an ffn that is no multiple of 8, or 2^34 elements and more.
namespace moesim::kernels::experts {

using Stream = CUstream_st*;

void launch_swiglu(const SwigluArguments& in, Stream stream);
void launch_swiglu_backward(const SwigluBackwardArguments& in, Stream stream);

}  // namespace moesim::kernels::experts
