#pragma once

#include "kernels/routing/arguments.hpp"

struct CUstream_st;

// Launches of the routing kernels; all pointers are the device's, nothing waits. Each throws
// CudaError when the launch is refused. No tokens: nothing, or results for no tokens.
namespace moesim::kernels::routing {

using Stream = CUstream_st*;

// x W^T and the choices of its logits; x and W bf16 (aligned to 16 bytes, hidden a multiple of 8),
// else fp32. One launch up to 128 experts in bf16, else two. Throws std::invalid_argument for
// another hidden size.
void launch_gate(const GateArguments& in, bool bfloat16, Stream stream);
void launch_choose(const ChooseArguments& in, Stream stream);
void launch_assign(const AssignArguments& in, Stream stream);
void launch_weigh(const WeighArguments& in, Stream stream);
void launch_collect(const CollectArguments& in, Stream stream);
void launch_backward(const BackwardArguments& in, Stream stream);

}  // namespace moesim::kernels::routing
