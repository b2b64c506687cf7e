#include "kernels/base/cublas.hpp"

#include <fmt/format.h>

#include <stdexcept>
#include <vector>

#include "kernels/base/cublas_library.hpp"
#include "sim/base/error.hpp"

namespace moesim::kernels {
namespace {

cublasOperation_t operation(bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; }

constexpr const char* no_grouped_gemm = "this cuBLAS has no grouped products: plan them one by one";

}  // namespace

cudaError_t code_of(cublasStatus_t status) {
  if (status == CUBLAS_STATUS_ALLOC_FAILED) return cudaErrorMemoryAllocation;
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return cudaErrorNotSupported;
  return cudaErrorUnknown;
}

void check_cublas(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  cudaGetLastError();  // one that cuBLAS met and did not clear
  throw CudaError(fmt::format("{} failed: {}, {}", what, cublas_library().status_name(status),
                              cublas_library().status_string(status)),
                  code_of(status));
}

CublasHandle::CublasHandle() {
  if (!cublas_library().trouble.empty()) {
    throw Error(cublas_library().trouble, ExitCode::missing_hardware);
  }
  check_cublas(cublas_library().create(&handle_), "cublasCreate");
}

CublasHandle::~CublasHandle() { cublas_library().destroy(handle_); }

std::string CublasHandle::version() const {
  int number = 0;
  if (cublas_library().get_version(handle_, &number) != CUBLAS_STATUS_SUCCESS) return "";
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

bool has_grouped_gemm() {
#if CUBLAS_VERSION >= 120500
  return cublas_library().gemm_grouped_batched != nullptr;
#else
  return false;
#endif
}

void set_stream(cublasHandle_t cublas, cudaStream_t stream, void* workspace,
                std::size_t workspace_bytes) {
  check_cublas(cublas_library().set_stream(cublas, stream), "cublasSetStream");
  check_cublas(cublas_library().set_workspace(cublas, workspace, workspace_bytes),
               "cublasSetWorkspace");
}

void use_stream(cublasHandle_t cublas, cudaStream_t stream) {
  cudaStream_t current = nullptr;
  check_cublas(cublas_library().get_stream(cublas, &current), "cublasGetStream");
  if (current == stream) return;
  check_cublas(cublas_library().set_stream(cublas, stream), "cublasSetStream");
}

void run_gemm(cublasHandle_t cublas, const Gemm& gemm, const void* left, const void* right,
              void* result, const GemmBatch& batch) {
  const CublasGemm in = column_major(gemm);
  const float one = 1;
  const float beta = gemm.accumulates ? 1.0F : 0.0F;
  const cudaDataType_t type = gemm.wide ? CUDA_R_32F : CUDA_R_16BF;
  if (batch.count == 1) {
    check_cublas(cublas_library().gemm(
                     cublas, operation(in.a_transposed), operation(in.b_transposed), in.m, in.n,
                     in.k, &one, right, CUDA_R_16BF, in.a_rows, left, CUDA_R_16BF, in.b_rows, &beta,
                     result, type, in.c_rows, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                 "cublasGemmEx");
    return;
  }
  check_cublas(
      cublas_library().gemm_strided_batched(
          cublas, operation(in.a_transposed), operation(in.b_transposed), in.m, in.n, in.k, &one,
          right, CUDA_R_16BF, in.a_rows, batch.right_stride, left, CUDA_R_16BF, in.b_rows,
          batch.left_stride, &beta, result, type, in.c_rows, batch.result_stride,
          static_cast<int>(batch.count), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
      "cublasGemmStridedBatchedEx");
}

#if CUBLAS_VERSION >= 120500

void run_grouped(cublasHandle_t cublas, std::span<const PlacedGemm> gemms, void* table) {
  if (gemms.empty()) return;
  if (!has_grouped_gemm()) throw std::logic_error(no_grouped_gemm);
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
  check_cublas(cublas_library().get_stream(cublas, &stream), "cublasGetStream");
  // From pageable memory: the runtime has taken the pointers when the call returns.
  MOESIM_CUDA(cudaMemcpyAsync(table, pointers.data(), pointers.size() * sizeof(void*),
                              cudaMemcpyHostToDevice, stream));
  const auto* device = static_cast<const void* const*>(table);
  auto* results = static_cast<void* const*>(table) + 2 * count;
  check_cublas(cublas_library().gemm_grouped_batched(
                   cublas, a_operation.data(), b_operation.data(), m.data(), n.data(), k.data(),
                   alpha.data(), device, CUDA_R_16BF, a_rows.data(), device + count, CUDA_R_16BF,
                   b_rows.data(), beta.data(), results, CUDA_R_16BF, c_rows.data(),
                   static_cast<int>(count), each.data(), CUBLAS_COMPUTE_32F),
               "cublasGemmGroupedBatchedEx");
}

#else

void run_grouped(cublasHandle_t, std::span<const PlacedGemm>, void*) {
  throw std::logic_error(no_grouped_gemm);
}

#endif

}  // namespace moesim::kernels
