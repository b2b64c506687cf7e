#include <fmt/format.h>

#include <cmath>

#include "kernels/experts/device_ffn.hpp"
#include "kernels/measure/cuda/workloads/rotated_workload.hpp"
#include "kernels/measure/cuda/workloads/workloads.hpp"
#include "kernels/measure/points/product_element.hpp"
#include "kernels/measure/suites/experts.hpp"
#include "sim/base/random.hpp"

namespace moesim::kernels::measure::cuda {
namespace {

using experts::ExpertGemm;
using experts::FfnPlan;
using experts::GemmBlock;
using experts::Tensor;

constexpr int checked_elements = 24;  // of each product and each activation

FfnPlan plan_of(const PointSpec& spec) {
  const experts::FfnShape shape{spec.params.at("experts"), spec.params.at("hidden"),
                                spec.params.at("ffn")};
  const std::int64_t rows = spec.params.at("rows");
  experts::FfnOptions options;
  // Grouped products copy their pointers from the host at each call: a graph would copy them again
  // when they are gone, and the runtime may wait for a stream that is held.
  options.grouped = false;
  if (spec.params.at("layout") == "padded") {
    return plan_ffn(shape, experts::RowLayout::padded(shape.experts, rows / shape.experts),
                    options);
  }
  return plan_ffn(shape, experts::RowLayout::ragged(ragged_rows(shape.experts, rows)), options);
}

// The FFNs of a GPU's local experts, forward or backward. Their weights pass the L2 by themselves.
class Experts : public RotatedWorkload {
 public:
  Experts(Context& context, const PointSpec& spec, std::uint64_t seed)
      : RotatedWorkload(context, 1),
        plan_(plan_of(spec)),
        backward_(spec.params.at("pass") == "backward"),
        draws_({seed, Purpose::measurement, 4}),
        ffn_(context.cublas(), stream()) {
    allocate({Tensor::input, Tensor::up_weight, Tensor::hidden, Tensor::activated,
              Tensor::down_weight, Tensor::output});
    fill(Tensor::input, 1, seed);
    fill(Tensor::up_weight, 0.05F, seed + 1);
    fill(Tensor::down_weight, 0.05F, seed + 2);
    if (backward_) {
      allocate({Tensor::output_gradient, Tensor::activated_gradient, Tensor::hidden_gradient,
                Tensor::input_gradient, Tensor::up_weight_gradient, Tensor::down_weight_gradient});
      fill(Tensor::output_gradient, 1, seed + 3);
      run_forward(plan_, tensors_, ffn_);
    }
    MOESIM_CUDA(cudaStreamSynchronize(stream()));
  }

 protected:
  void launch(std::size_t) override {
    backward_ ? run_backward(plan_, tensors_, ffn_) : run_forward(plan_, tensors_, ffn_);
  }
  void poison() override {
    for (const Tensor tensor : results()) buffer(tensor).fill(0xff);
  }
  std::string check() override {
    for (const ExpertGemm& call : backward_ ? plan_.backward : plan_.forward) {
      std::string wrong = check_product(call);
      if (!wrong.empty()) return wrong;
    }
    return check_activation();
  }

 private:
  DeviceBuffer<std::uint16_t>& buffer(Tensor tensor) {
    return buffers_[static_cast<std::size_t>(tensor)];
  }
  void allocate(std::initializer_list<Tensor> list) {
    for (const Tensor tensor : list) {
      buffer(tensor) = DeviceBuffer<std::uint16_t>(plan_.elements(tensor));
      tensors_[tensor] = buffer(tensor).data();
    }
  }
  void fill(Tensor tensor, float scale, std::uint64_t seed) {
    launch_random_bf16(buffer(tensor).data(), buffer(tensor).size(), seed, scale, stream());
  }
  std::vector<Tensor> results() const {
    if (!backward_) return {Tensor::hidden, Tensor::activated, Tensor::output};
    return {Tensor::activated_gradient, Tensor::hidden_gradient, Tensor::input_gradient,
            Tensor::up_weight_gradient, Tensor::down_weight_gradient};
  }

  std::int64_t draw(std::int64_t below) {
    return static_cast<std::int64_t>(draws_.uniform() * static_cast<double>(below));
  }
  // `count` elements of a tensor, `stride` apart.
  std::vector<double> column(Tensor tensor, std::int64_t first, std::int64_t count,
                             std::int64_t stride) {
    const auto elements = static_cast<std::size_t>(count);
    const std::uint16_t* from = buffer(tensor).data() + first;
    // Gathered on the device: a copy of rows 2 bytes wide crosses the bus once for each.
    if (stride != 1) {
      if (column_.size() < elements) column_ = DeviceBuffer<std::uint16_t>(elements);
      launch_gather(from, column_.data(), elements, static_cast<std::size_t>(stride), stream());
      MOESIM_CUDA(cudaStreamSynchronize(stream()));
      from = column_.data();
    }
    std::vector<double> values;
    for (const std::uint16_t each : download(from, elements)) values.push_back(bf16_value(each));
    return values;
  }
  double value(Tensor tensor, std::int64_t at) { return column(tensor, at, 1, 1).front(); }

  // Elements of a product against sums in fp64 of what the device itself multiplied.
  std::string check_product(const ExpertGemm& call) {
    for (int each = 0; each < checked_elements && !call.blocks.empty(); ++each) {
      const GemmBlock& block = call.blocks[static_cast<std::size_t>(
          draw(static_cast<std::int64_t>(call.blocks.size())))];
      const Gemm& gemm = block.gemm;
      const std::int64_t row = draw(gemm.m), place = draw(gemm.n);
      const auto left = gemm.left_transposed
                            ? column(call.left, block.left + row, gemm.k, gemm.m)
                            : column(call.left, block.left + row * gemm.k, gemm.k, 1);
      const auto right = gemm.right_transposed
                             ? column(call.right, block.right + place * gemm.k, gemm.k, 1)
                             : column(call.right, block.right + place, gemm.k, gemm.n);
      ProductElement wanted;
      for (std::size_t at = 0; at < left.size(); ++at) wanted.add(left[at], right[at]);
      const double got = value(call.result, block.result + row * gemm.n + place);
      if (!wanted.matches(got)) {
        return fmt::format("{}, expert {}: element [{}, {}] is {}, expected {}", call.name,
                           block.expert, row, place, got, wanted.value());
      }
    }
    return "";
  }

  std::string check_activation() {
    const std::int64_t ffn = plan_.shape.ffn;
    for (int each = 0; each < checked_elements && plan_.layout.rows() > 0; ++each) {
      const std::int64_t row = draw(plan_.layout.rows()), place = draw(ffn);
      const std::int64_t gate_at = row * 2 * ffn + place, up_at = gate_at + ffn;
      const double gate = value(Tensor::hidden, gate_at), up = value(Tensor::hidden, up_at);
      const double share = 1 / (1 + std::exp(-gate));
      if (!backward_) {
        const double got = value(Tensor::activated, row * ffn + place);
        if (!close(got, gate * share * up, 0)) {
          return fmt::format("activation [{}, {}] is {}, expected {}", row, place, got,
                             gate * share * up);
        }
        continue;
      }
      const double above = value(Tensor::activated_gradient, row * ffn + place);
      const double by_gate = above * up * share * (1 + gate * (1 - share));
      const double by_up = above * gate * share;
      const double got_gate = value(Tensor::hidden_gradient, gate_at);
      const double got_up = value(Tensor::hidden_gradient, up_at);
      // 1 + g (1 - s) cancels where its derivative is near 0.
      if (!close(got_gate, by_gate, std::abs(above * up) * 0x1p-18) || !close(got_up, by_up, 0)) {
        return fmt::format("the activation's gradient [{}, {}] is {} and {}, expected {} and {}",
                           row, place, got_gate, got_up, by_gate, by_up);
      }
    }
    return "";
  }

  FfnPlan plan_;
  bool backward_;
  ::moesim::Stream draws_;
  experts::DeviceFfn ffn_;
  std::array<DeviceBuffer<std::uint16_t>, experts::tensor_count> buffers_;
  experts::FfnTensors tensors_;
  DeviceBuffer<std::uint16_t> column_;  // what column() gathers; grows to the largest
};

}  // namespace

std::unique_ptr<Workload> expert_workload(Context& context, const PointSpec& spec,
                                          std::uint64_t seed) {
  return std::make_unique<Experts>(context, spec, seed);
}

}  // namespace moesim::kernels::measure::cuda
