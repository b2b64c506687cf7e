#pragma once

#include "kernels/exchange/launch.hpp"

struct cublasContext;

// Dispatch and combine as the libraries' einsum writes them, for comparison: dense one-hot masks
// and two products of S x (E C) x h on the tensor cores (2 S E C h FLOPs each). bf16.
namespace moesim::kernels::exchange {

struct EinsumArguments {
  RouteMap map;  // experts * block_rows is a multiple of 8
  int hidden = 0;
  const void* tokens = nullptr;  // x [tokens, hidden]
  void* rows = nullptr;          // [experts, block_rows, hidden]
  void* mask = nullptr;          // scratch [tokens, experts * block_rows]
  const float* weight = nullptr;
  void* out = nullptr;  // [tokens, hidden]
};

// rows = mask^T x. Throws CudaError when a launch is refused.
void einsum_dispatch(const EinsumArguments& in, cublasContext* cublas, Stream stream);
// out = mask rows with the weights in the mask.
void einsum_combine(const EinsumArguments& in, cublasContext* cublas, Stream stream);
void launch_one_hot(const OneHotArguments& in, ElementType type, Stream stream);
void launch_read_one_hot(const MaskGradientArguments& in, ElementType type, Stream stream);

}  // namespace moesim::kernels::exchange
