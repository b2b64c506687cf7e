#include "kernels/exchange/einsum.hpp"

#include "kernels/base/cublas.hpp"
#include "kernels/base/nvtx.hpp"

namespace moesim::kernels::exchange {

namespace {

int columns_of(const EinsumArguments& in) { return in.map.experts * in.map.block_rows; }

}  // namespace

void einsum_dispatch(const EinsumArguments& in, cublasContext* cublas, Stream stream) {
  const NvtxRange range("einsum dispatch");
  launch_one_hot({in.map, nullptr, in.mask}, ElementType::bfloat16, stream);
  use_stream(cublas, stream);
  run_gemm(cublas, {columns_of(in), in.hidden, in.map.tokens, true}, in.mask, in.tokens, in.rows);
}

void einsum_combine(const EinsumArguments& in, cublasContext* cublas, Stream stream) {
  const NvtxRange range("einsum combine");
  launch_one_hot({in.map, in.weight, in.mask}, ElementType::bfloat16, stream);
  use_stream(cublas, stream);
  run_gemm(cublas, {in.map.tokens, in.hidden, columns_of(in)}, in.mask, in.rows, in.out);
}

}  // namespace moesim::kernels::exchange
