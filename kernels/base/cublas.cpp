#include "kernels/base/cublas.hpp"

#include <stdexcept>
#include <vector>

namespace moesim::kernels {
namespace {

cublasOperation_t operation(bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; }

}  // namespace

void run_gemm(cublasHandle_t cublas, const Gemm& gemm, const void* left, const void* right,
              void* result, const GemmBatch& batch) {
  const CublasGemm in = column_major(gemm);
  const float one = 1;
  const float beta = gemm.accumulates ? 1.0F : 0.0F;
  const cudaDataType_t type = gemm.wide ? CUDA_R_32F : CUDA_R_16BF;
  if (batch.count == 1) {
    MOESIM_CUBLAS(cublasGemmEx(cublas, operation(in.a_transposed), operation(in.b_transposed), in.m,
                               in.n, in.k, &one, right, CUDA_R_16BF, in.a_rows, left, CUDA_R_16BF,
                               in.b_rows, &beta, result, type, in.c_rows, CUBLAS_COMPUTE_32F,
                               CUBLAS_GEMM_DEFAULT));
    return;
  }
  MOESIM_CUBLAS(cublasGemmStridedBatchedEx(
      cublas, operation(in.a_transposed), operation(in.b_transposed), in.m, in.n, in.k, &one, right,
      CUDA_R_16BF, in.a_rows, batch.right_stride, left, CUDA_R_16BF, in.b_rows, batch.left_stride,
      &beta, result, type, in.c_rows, batch.result_stride, static_cast<int>(batch.count),
      CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

#if CUBLAS_VERSION >= 120500

void run_grouped(cublasHandle_t cublas, std::span<const PlacedGemm> gemms, void* table) {
  if (gemms.empty()) return;
  const std::size_t count = gemms.size();
  std::vector<cublasOperation_t> a_operation, b_operation;
  std::vector<int> m, n, k, a_rows, b_rows, c_rows;
  const std::vector<int> each(count, 1);
  const std::vector<float> alpha(count, 1.0F);
  const std::vector<float> beta(count, gemms[0].gemm.accumulates ? 1.0F : 0.0F);
  std::vector<const void*> pointers(3 * count);
  for (std::size_t at = 0; at < count; ++at) {
    const CublasGemm in = column_major(gemms[at].gemm);
    a_operation.push_back(operation(in.a_transposed));
    b_operation.push_back(operation(in.b_transposed));
    m.push_back(in.m);
    n.push_back(in.n);
    k.push_back(in.k);
    a_rows.push_back(in.a_rows);
    b_rows.push_back(in.b_rows);
    c_rows.push_back(in.c_rows);
    pointers[at] = gemms[at].right;
    pointers[count + at] = gemms[at].left;
    pointers[2 * count + at] = gemms[at].result;
  }
  cudaStream_t stream = nullptr;
  MOESIM_CUBLAS(cublasGetStream(cublas, &stream));
  // From pageable memory: the runtime has taken the pointers when the call returns.
  MOESIM_CUDA(cudaMemcpyAsync(table, pointers.data(), pointers.size() * sizeof(void*),
                              cudaMemcpyHostToDevice, stream));
  const auto* device = static_cast<const void* const*>(table);
  auto* results = static_cast<void* const*>(table) + 2 * count;
  MOESIM_CUBLAS(cublasGemmGroupedBatchedEx(
      cublas, a_operation.data(), b_operation.data(), m.data(), n.data(), k.data(), alpha.data(),
      device, CUDA_R_16BF, a_rows.data(), device + count, CUDA_R_16BF, b_rows.data(), beta.data(),
      results, CUDA_R_16BF, c_rows.data(), static_cast<int>(count), each.data(),
      CUBLAS_COMPUTE_32F));
}

#else

void run_grouped(cublasHandle_t, std::span<const PlacedGemm>, void*) {
  throw std::logic_error("this cuBLAS has no grouped products: plan them one by one");
}

#endif

}  // namespace moesim::kernels
