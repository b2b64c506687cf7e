#include "kernels/experts/plan.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/base/error.hpp"

namespace moesim::kernels::experts {
namespace {

constexpr std::array<const char*, tensor_count> tensor_names = {
    "input",           "up_weight",          "hidden",
    "activated",       "down_weight",        "output",
    "output_gradient", "activated_gradient", "hidden_gradient",
    "input_gradient",  "up_weight_gradient", "down_weight_gradient"};
constexpr std::array<const char*, 5> form_names = {"none", "plain", "strided_batched", "grouped",
                                                   "one_by_one"};

// Columns of a tensor, and its rows for each expert where it is a weight, else 0.
struct Extent {
  std::int64_t columns = 0;
  std::int64_t rows_each = 0;
};

Extent extent_of(const FfnShape& shape, Tensor tensor) {
  switch (tensor) {
    case Tensor::input:
    case Tensor::output:
    case Tensor::output_gradient:
    case Tensor::input_gradient:
      return {shape.hidden, 0};
    case Tensor::hidden:
    case Tensor::hidden_gradient:
      return {2 * std::int64_t{shape.ffn}, 0};
    case Tensor::activated:
    case Tensor::activated_gradient:
      return {shape.ffn, 0};
    case Tensor::up_weight:
    case Tensor::up_weight_gradient:
      return {shape.hidden, 2 * std::int64_t{shape.ffn}};
    case Tensor::down_weight:
    case Tensor::down_weight_gradient:
      return {shape.ffn, shape.hidden};
  }
  return {};
}

std::int64_t offset_of(const FfnPlan& plan, Tensor tensor, int expert) {
  const Extent extent = extent_of(plan.shape, tensor);
  const std::int64_t row =
      extent.rows_each > 0 ? expert * extent.rows_each : plan.layout.begin(expert);
  return row * extent.columns;
}

void choose_form(const FfnPlan& plan, ExpertGemm& call) {
  const auto pick = [&](GemmForm form, std::string reason) {
    call.form = form;
    call.reason = std::move(reason);
  };
  if (call.blocks.empty()) return pick(GemmForm::none, "no expert has a row");
  if (call.blocks.size() == 1) return pick(GemmForm::plain, "one expert has rows");
  if (plan.layout.is_padded()) {
    return pick(GemmForm::strided_batched, "equal rows per expert at equal distances");
  }
  if (!plan.options.grouped) {
    return pick(
        GemmForm::one_by_one,
        "rows differ by expert, and this cuBLAS (before 12.5) has no cublasGemmGroupedBatchedEx");
  }
  const auto experts = static_cast<std::int64_t>(call.blocks.size());
  if (plan.layout.rows() > most_grouped_rows * experts) {
    return pick(GemmForm::one_by_one, "rows differ by expert, and a product alone fills the GPU");
  }
  pick(GemmForm::grouped, "rows differ by expert");
}

// `shape` with the rows of an expert in place of -1.
ExpertGemm make_call(const FfnPlan& plan, const char* name, Tensor left, Tensor right,
                     Tensor result, const Gemm& shape) {
  ExpertGemm call{name, left, right, result, {}, GemmForm::none, ""};
  for (int expert = 0; expert < plan.shape.experts; ++expert) {
    const std::int64_t rows = plan.layout.rows_of(expert);
    if (rows == 0) continue;
    GemmBlock block{expert, shape, offset_of(plan, left, expert), offset_of(plan, right, expert),
                    offset_of(plan, result, expert)};
    if (block.gemm.m < 0) block.gemm.m = rows;
    if (block.gemm.k < 0) block.gemm.k = rows;
    call.blocks.push_back(block);
  }
  choose_form(plan, call);
  return call;
}

double sum_of_flops(const std::vector<ExpertGemm>& calls) {
  double sum = 0;
  for (const ExpertGemm& call : calls) sum += call.flops();
  return sum;
}

}  // namespace

const char* name_of(Tensor tensor) { return tensor_names[static_cast<std::size_t>(tensor)]; }
const char* name_of(GemmForm form) { return form_names[static_cast<std::size_t>(form)]; }

void FfnShape::check() const {
  if (experts < 1) throw UsageError(fmt::format("{} local experts: at least 1", experts));
  for (const auto& [size, name] : {std::pair{hidden, "hidden size"}, {ffn, "FFN size"}}) {
    if (size >= 8 && size % 8 == 0) continue;
    throw UsageError(fmt::format(
        "a {} of {}: rows of bf16 begin at 16-byte steps, so it must be a multiple of 8", name,
        size));
  }
}

RowLayout RowLayout::padded(int experts, std::int64_t rows_each) {
  RowLayout layout =
      ragged(std::vector<std::int64_t>(static_cast<std::size_t>(experts), rows_each));
  layout.padded_ = true;
  return layout;
}

RowLayout RowLayout::ragged(const std::vector<std::int64_t>& rows_of_expert) {
  RowLayout layout;
  for (const std::int64_t rows : rows_of_expert) {
    if (rows < 0) throw UsageError(fmt::format("{} rows of an expert: 0 or more", rows));
    layout.begin_.push_back(layout.begin_.back() + rows);
  }
  return layout;
}

double ExpertGemm::flops() const {
  double sum = 0;
  for (const GemmBlock& block : blocks) sum += block.gemm.flops();
  return sum;
}

GemmBatch ExpertGemm::batch() const {
  if (blocks.size() < 2) return {};
  const GemmBlock& first = blocks[0];
  const GemmBlock& second = blocks[1];
  return {static_cast<std::int64_t>(blocks.size()), second.left - first.left,
          second.right - first.right, second.result - first.result};
}

std::size_t FfnPlan::elements(Tensor tensor) const {
  const Extent extent = extent_of(shape, tensor);
  const std::int64_t rows = extent.rows_each > 0 ? shape.experts * extent.rows_each : layout.rows();
  return static_cast<std::size_t>(rows * extent.columns);
}

std::size_t FfnPlan::table_bytes() const {
  std::size_t most = 0;
  for (const auto* calls : {&forward, &backward}) {
    for (const ExpertGemm& call : *calls) {
      if (call.form == GemmForm::grouped) most = std::max(most, call.blocks.size());
    }
  }
  return 3 * most * sizeof(void*);
}

double FfnPlan::forward_flops() const { return sum_of_flops(forward); }
double FfnPlan::backward_flops() const { return sum_of_flops(backward); }

std::string FfnPlan::needs() const {
  if (layout.is_padded()) return "nothing: all sizes follow from the capacity";
  return fmt::format(
      "the rows of each expert on the host, so a wait for the device if it counted them{}",
      table_bytes() > 0 ? fmt::format("; {} bytes of device memory for pointers", table_bytes())
                        : "");
}

FfnPlan plan_ffn(const FfnShape& shape, const RowLayout& layout, const FfnOptions& options) {
  shape.check();
  if (layout.experts() != shape.experts) {
    throw UsageError(
        fmt::format("rows of {} experts for a GPU of {}", layout.experts(), shape.experts));
  }
  FfnPlan plan{shape, layout, options, {}, {}, {}};
  for (int expert = 0; expert < shape.experts; ++expert) {
    if (layout.rows_of(expert) == 0) plan.idle.push_back(expert);
  }
  constexpr std::int64_t rows = -1;
  const std::int64_t width = shape.hidden, ffn = shape.ffn, both = 2 * ffn;
  const bool adds = options.accumulates;
  using enum Tensor;
  plan.forward = {
      make_call(plan, "up", input, up_weight, hidden, {rows, both, width, false, true}),
      make_call(plan, "down", activated, down_weight, output, {rows, width, ffn, false, true})};
  plan.backward = {make_call(plan, "down by input", output_gradient, down_weight,
                             activated_gradient, {rows, ffn, width}),
                   make_call(plan, "down by weight", output_gradient, activated,
                             down_weight_gradient, {width, ffn, rows, true, false, adds}),
                   make_call(plan, "up by input", hidden_gradient, up_weight, input_gradient,
                             {rows, width, both}),
                   make_call(plan, "up by weight", hidden_gradient, input, up_weight_gradient,
                             {both, width, rows, true, false, adds})};
  return plan;
}

}  // namespace moesim::kernels::experts
