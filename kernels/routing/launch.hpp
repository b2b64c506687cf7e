#pragma once

#include "kernels/routing/arguments.hpp"

struct CUstream_st;

// Launches of the routing kernels; all pointers are the device's, nothing waits. Each throws
// CudaError when the launch is refused. No tokens: nothing, or results for no tokens.
namespace moesim::kernels::routing {

using Stream = CUstream_st*;

void launch_choose(const ChooseArguments& in, Stream stream);
void launch_assign(const AssignArguments& in, Stream stream);
void launch_weigh(const WeighArguments& in, Stream stream);
void launch_collect(const CollectArguments& in, Stream stream);
void launch_backward(const BackwardArguments& in, Stream stream);

}  // namespace moesim::kernels::routing
