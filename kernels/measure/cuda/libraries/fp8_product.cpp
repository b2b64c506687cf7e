#include "kernels/measure/cuda/libraries/fp8_product.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdint>

#include "kernels/base/cublas.hpp"
#include "kernels/measure/cuda/libraries/cublaslt_library.hpp"

namespace moesim::kernels::measure::cuda {
namespace {

// Headers before CUDA 12.8 do not know the attributes, before 12.9 not the modes.
constexpr auto attribute_a_mode = static_cast<cublasLtMatmulDescAttributes_t>(31);
constexpr auto attribute_b_mode = static_cast<cublasLtMatmulDescAttributes_t>(32);
constexpr std::int32_t mode_by_128 = 4, mode_by_128x128 = 5;
constexpr std::size_t oldest_by_block = 120900;
#if CUBLAS_VERSION >= 120900
static_assert(attribute_a_mode == CUBLASLT_MATMUL_DESC_A_SCALE_MODE);
static_assert(attribute_b_mode == CUBLASLT_MATMUL_DESC_B_SCALE_MODE);
static_assert(mode_by_128 == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
static_assert(mode_by_128x128 == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
#endif

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  cudaGetLastError();  // one that cuBLASLt met and did not clear
  throw CudaError(fmt::format("{} failed: {}", what, cublas_lt().words(status)), code_of(status));
}

// An object of cuBLASLt's, given back at the end.
template <typename Handle>
class Owned {
 public:
  explicit Owned(cublasStatus_t (*destroy)(Handle)) : destroy_(destroy) {}
  ~Owned() {
    if (handle_ != nullptr) destroy_(handle_);
  }
  Owned(const Owned&) = delete;  // a second owner would give it back too
  Owned& operator=(const Owned&) = delete;
  Handle get() const { return handle_; }
  Handle* place() { return &handle_; }

 private:
  Handle handle_ = nullptr;
  cublasStatus_t (*destroy_)(Handle);
};

}  // namespace

std::string fp8_trouble(bool by_block, int compute_major, int compute_minor, std::size_t version) {
  const int capability = 10 * compute_major + compute_minor;
  if (capability < 89) return "this GPU has no FP8 tensor cores: they begin with 8.9";
  if (!by_block) return "";
  if (capability != 90) {
    return "cuBLASLt multiplies FP8 with fp32 scales per 128 on Hopper (9.0) alone";
  }
  if (version >= oldest_by_block) return "";
  return fmt::format("cuBLASLt {} has no scales per 128: they begin with that of CUDA 12.9",
                     version);
}

CublasLtHandle::CublasLtHandle() {
  if (!cublas_lt().trouble.empty()) throw NotMeasurable(cublas_lt().trouble);
  const cublasStatus_t created = cublas_lt().create(&handle_);
  if (created != CUBLAS_STATUS_SUCCESS) {
    throw NotMeasurable(fmt::format("cuBLASLt does not start: {}", cublas_lt().words(created)));
  }
}

CublasLtHandle::~CublasLtHandle() { cublas_lt().destroy(handle_); }

// cuBLASLt is column-major, where Y is [n, m], X is [k, m] and W is [k, n]: Y = W^T X, which is the
// one form (transposed, not transposed) that it has for FP8 on Hopper.
struct Fp8Product::State {
  State(const CublasLtHandle& on, const Fp8Shape& shape, const Fp8Operands& first,
        std::size_t bytes)
      : handle(on.get()), workspace_bytes(bytes) {
    describe(shape);
    point_at(first);
    choose();
  }

  template <typename Value>
  void set(cublasLtMatmulDescAttributes_t name, const Value& value) {
    check(cublas_lt().product_set(product.get(), name, &value, sizeof value),
          "cublasLtMatmulDescSetAttribute");
  }

  void describe(const Fp8Shape& shape) {
    check(cublas_lt().product_create(product.place(), CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "cublasLtMatmulDescCreate");
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{0});
    if (shape.by_block) {
      set(attribute_a_mode, mode_by_128x128);
      set(attribute_b_mode, mode_by_128);
    }
    const auto [m, n, k] =
        std::array{static_cast<std::uint64_t>(shape.m), static_cast<std::uint64_t>(shape.n),
                   static_cast<std::uint64_t>(shape.k)};
    layout(w, CUDA_R_8F_E4M3, k, n);
    layout(x, CUDA_R_8F_E4M3, k, m);
    layout(y, CUDA_R_16BF, n, m);
  }

  static void layout(Owned<cublasLtMatrixLayout_t>& of, cudaDataType type, std::uint64_t rows,
                     std::uint64_t columns) {
    check(
        cublas_lt().layout_create(of.place(), type, rows, columns, static_cast<std::int64_t>(rows)),
        "cublasLtMatrixLayoutCreate");
  }

  void point_at(const Fp8Operands& operands) {
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.w_scales);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.x_scales);
  }

  void choose() {
    Owned<cublasLtMatmulPreference_t> limits(cublas_lt().preference_destroy);
    check(cublas_lt().preference_create(limits.place()), "cublasLtMatmulPreferenceCreate");
    check(cublas_lt().preference_set(limits.get(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                     &workspace_bytes, sizeof workspace_bytes),
          "cublasLtMatmulPreferenceSetAttribute");
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    const cublasStatus_t status = cublas_lt().heuristic(
        handle, product.get(), w.get(), x.get(), y.get(), y.get(), limits.get(), 1, &found, &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && count == 0)) {
      throw NotMeasurable("cuBLASLt has no FP8 product for this shape");
    }
    check(status, "cublasLtMatmulAlgoGetHeuristic");
    algorithm = found.algo;
  }

  cublasLtHandle_t handle;
  std::size_t workspace_bytes;
  Owned<cublasLtMatmulDesc_t> product{cublas_lt().product_destroy};
  Owned<cublasLtMatrixLayout_t> w{cublas_lt().layout_destroy}, x{cublas_lt().layout_destroy},
      y{cublas_lt().layout_destroy};
  cublasLtMatmulAlgo_t algorithm{};
};

Fp8Product::Fp8Product(const CublasLtHandle& handle, const Fp8Shape& shape,
                       const Fp8Operands& first, std::size_t workspace_bytes)
    : state_(std::make_unique<State>(handle, shape, first, workspace_bytes)) {}

Fp8Product::~Fp8Product() = default;

void Fp8Product::run(const Fp8Operands& operands, void* workspace, cudaStream_t stream) {
  State& state = *state_;
  state.point_at(operands);
  const float one = 1, zero = 0;
  check(cublas_lt().multiply(state.handle, state.product.get(), &one, operands.w, state.w.get(),
                             operands.x, state.x.get(), &zero, operands.y, state.y.get(),
                             operands.y, state.y.get(), &state.algorithm, workspace,
                             state.workspace_bytes, stream),
        "cublasLtMatmul");
}

}  // namespace moesim::kernels::measure::cuda
