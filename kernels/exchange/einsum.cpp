#include "kernels/exchange/einsum.hpp"

#include <cublas_v2.h>

#include <stdexcept>
#include <string>

#include "kernels/base/nvtx.hpp"

namespace moesim::kernels::exchange {

namespace {

void check_cublas(cublasStatus_t status, const char* expression) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw std::runtime_error(std::string(expression) + " failed: " + cublasGetStatusName(status) +
                           ", " + cublasGetStatusString(status));
}

#define MOESIM_CUBLAS(expression) check_cublas((expression), #expression)

int columns_of(const EinsumArguments& in) { return in.map.experts * in.map.block_rows; }

// Row-major c [m, n] = a b with `a` [m, k], or [k, m] where `transposed`; cuBLAS sees the
// transposes, column-major.
void multiply(cublasContext* cublas, bool transposed, int m, int n, int k, const void* a,
              const void* b, void* c) {
  const float one = 1;
  const float zero = 0;
  MOESIM_CUBLAS(cublasGemmEx(cublas, CUBLAS_OP_N, transposed ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k,
                             &one, b, CUDA_R_16BF, n, a, CUDA_R_16BF, transposed ? m : k, &zero, c,
                             CUDA_R_16BF, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

}  // namespace

void einsum_dispatch(const EinsumArguments& in, cublasContext* cublas, Stream stream) {
  const NvtxRange range("einsum dispatch");
  launch_one_hot({in.map, nullptr, in.mask}, ElementType::bfloat16, stream);
  MOESIM_CUBLAS(cublasSetStream(cublas, stream));
  multiply(cublas, true, columns_of(in), in.hidden, in.map.tokens, in.mask, in.tokens, in.rows);
}

void einsum_combine(const EinsumArguments& in, cublasContext* cublas, Stream stream) {
  const NvtxRange range("einsum combine");
  launch_one_hot({in.map, in.weight, in.mask}, ElementType::bfloat16, stream);
  MOESIM_CUBLAS(cublasSetStream(cublas, stream));
  multiply(cublas, false, in.map.tokens, in.hidden, columns_of(in), in.mask, in.rows, in.out);
}

}  // namespace moesim::kernels::exchange
