#pragma once

#include "kernels/exchange/arguments.hpp"
#include "kernels/routing/arguments.hpp"

struct CUstream_st;

// Launches of permute and combine; all pointers are the device's, aligned to 16 bytes, nothing
// waits. Each throws CudaError when the launch is refused.
namespace moesim::kernels::exchange {

using Stream = CUstream_st*;

void launch_dispatch(const DispatchArguments& in, Stream stream);
// The weights of a router without IR (launch_weigh()) and the dispatch of the same routes, in one
// launch. Throws std::invalid_argument with IR, whose rows are known only behind its weights.
void launch_weigh_and_dispatch(const routing::WeighArguments& weigh, const DispatchArguments& in,
                               Stream stream);
void launch_combine(const CombineArguments& in, ElementType type, Stream stream);
void launch_combine_backward(const CombineBackwardArguments& in, ElementType type, Stream stream);

// The size of a row in 16-byte pieces. Throws std::invalid_argument when it is not whole.
int row_vectors(int hidden, ElementType type);

}  // namespace moesim::kernels::exchange
