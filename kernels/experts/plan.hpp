#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/gemm.hpp"

// The experts of one GPU as a list of matrix products: which cuBLAS call each becomes, and why.
// Host code without CUDA. bf16, sums in fp32; weights as frameworks store them.
//   forward   hidden = x Wu^T, activated = silu(gate) up, y = activated Wd^T
//   backward  da = dy Wd, dWd = dy^T activated, dhidden by the activation's derivative,
//             dx = dhidden Wu, dWu = dhidden^T x
namespace moesim::kernels::experts {

enum class Tensor {
  input,        // x [rows, hidden]
  up_weight,    // Wu [experts, 2 ffn, hidden], the rows of the gate before those of up
  hidden,       // [rows, 2 ffn]
  activated,    // [rows, ffn]
  down_weight,  // Wd [experts, hidden, ffn]
  output,       // y [rows, hidden]
  output_gradient,
  activated_gradient,
  hidden_gradient,
  input_gradient,
  up_weight_gradient,
  down_weight_gradient
};
inline constexpr std::size_t tensor_count = 12;
const char* name_of(Tensor tensor);

struct FfnShape {
  int experts = 1;  // of this GPU
  int hidden = 0;   // multiples of 8, as is ffn: rows begin at 16-byte steps
  int ffn = 0;

  // Throws UsageError.
  void check() const;
};

// Which rows are whose: expert e has rows [begin[e], begin[e + 1]).
class RowLayout {
 public:
  // As many for each expert: a padded exchange (P C of them). Known without asking the device.
  static RowLayout padded(int experts, std::int64_t rows_each);
  // Any number for each, zero too. Throws UsageError for a negative one.
  static RowLayout ragged(const std::vector<std::int64_t>& rows_of_expert);

  bool is_padded() const { return padded_; }
  int experts() const { return static_cast<int>(begin_.size()) - 1; }
  std::int64_t rows() const { return begin_.back(); }
  std::int64_t begin(int expert) const { return begin_[static_cast<std::size_t>(expert)]; }
  std::int64_t rows_of(int expert) const { return begin(expert + 1) - begin(expert); }

 private:
  std::vector<std::int64_t> begin_{0};
  bool padded_ = false;
};

// How the products of a call reach cuBLAS.
enum class GemmForm {
  none,             // there are no rows
  plain,            // one product: cublasGemmEx
  strided_batched,  // equal shapes at equal distances: cublasGemmStridedBatchedEx
  grouped,          // any shapes in one call: cublasGemmGroupedBatchedEx
  one_by_one        // a cublasGemmEx each
};
const char* name_of(GemmForm form);

// Mean rows of an expert up to which a grouped call is used. IR rows of a layer on an H200 took 8.7
// ms grouped and 3.6 ms one by one (kernels/README.md); where the two cross is assumed.
inline constexpr std::int64_t most_grouped_rows = 128;

// One expert's part of a call; offsets in elements.
struct GemmBlock {
  int expert = 0;
  Gemm gemm;
  std::int64_t left = 0;
  std::int64_t right = 0;
  std::int64_t result = 0;
};

struct ExpertGemm {
  const char* name = "";  // "up", "down", "down by input", "down by weight", "up by ..."
  Tensor left = Tensor::input;
  Tensor right = Tensor::input;
  Tensor result = Tensor::input;
  std::vector<GemmBlock> blocks;  // experts with rows
  GemmForm form = GemmForm::none;
  std::string reason;  // of the form

  double flops() const;
  GemmBatch batch() const;  // of GemmForm::strided_batched
};

struct FfnOptions {
  // Weight gradients are added to what is there; else written whole, zeros for experts without
  // rows.
  bool accumulates = false;
  // cublasGemmGroupedBatchedEx may be used (kernels/base/cublas.hpp, has_grouped_gemm()).
  bool grouped = true;
};

struct FfnPlan {
  FfnShape shape;
  RowLayout layout;
  FfnOptions options;
  std::vector<ExpertGemm> forward;   // up, down
  std::vector<ExpertGemm> backward;  // down by input, down by weight, up by input, up by weight
  std::vector<int> idle;             // experts without rows

  std::size_t elements(Tensor tensor) const;
  std::size_t bytes(Tensor tensor) const { return 2 * elements(tensor); }
  // The bytes of device memory that grouped calls write their pointers to; 0 if none is grouped.
  std::size_t table_bytes() const;
  double forward_flops() const;
  double backward_flops() const;
  // What the layout asks of its caller before the first product.
  std::string needs() const;
};

// Throws UsageError for a shape or layout that cannot be.
FfnPlan plan_ffn(const FfnShape& shape, const RowLayout& layout, const FfnOptions& options = {});

}  // namespace moesim::kernels::experts
