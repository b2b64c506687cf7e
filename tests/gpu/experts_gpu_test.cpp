#include <cmath>
#include <random>

#include "kernels/base/bfloat16.cuh"
#include "kernels/experts/device_ffn.hpp"
#include "kernels/experts/launch.hpp"
#include "tests/gpu/device.hpp"
#include "tests/support/catch.hpp"

using namespace moesim::kernels;
using namespace moesim::kernels::experts;

namespace {

using Values = std::vector<double>;

std::vector<Bfloat16> draw(std::size_t count, std::mt19937& engine, float scale) {
  std::vector<Bfloat16> values(count);
  for (Bfloat16& value : values) {
    value = to_bfloat16(scale * (static_cast<float>(engine()) * 0x1p-31F - 1.0F));
  }
  return values;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// A plan's tensors on the device and its inputs here.
struct Case {
  FfnPlan plan;
  std::vector<std::vector<Bfloat16>> host;
  std::vector<DeviceBuffer<Bfloat16>> device;
  FfnTensors tensors;

  Case(const FfnPlan& given, unsigned seed) : plan(given) {
    std::mt19937 engine(seed);
    const float unit = 2 / std::sqrt(static_cast<float>(given.shape.hidden));
    for (std::size_t at = 0; at < tensor_count; ++at) {
      const auto tensor = static_cast<Tensor>(at);
      const bool weight = tensor == Tensor::up_weight || tensor == Tensor::down_weight;
      host.push_back(draw(plan.elements(tensor), engine, weight ? unit : 1.0F));
      device.emplace_back(host.back());
      tensors.at[at] = device.back().data();
    }
  }
  double at(Tensor tensor, std::size_t place) const {
    return static_cast<double>(to_float(host[static_cast<std::size_t>(tensor)][place]));
  }
  std::vector<Bfloat16> result(Tensor tensor) const {
    return device[static_cast<std::size_t>(tensor)].download();
  }
};

double error_of(const std::vector<Bfloat16>& got, std::size_t begin, const Values& wanted) {
  double off = 0, size = 0;
  for (std::size_t at = 0; at < wanted.size(); ++at) {
    off += std::pow(static_cast<double>(to_float(got[begin + at])) - wanted[at], 2);
    size += wanted[at] * wanted[at];
  }
  return off == 0 ? 0 : std::sqrt(off / size);
}
// Three or four roundings to bf16, each with a root mean square of 0.0016 (tests/kernels/experts).
constexpr double tolerance = 0.01;

void check_expert(const Case& one, int expert, const std::vector<Bfloat16>& output,
                  const std::vector<Bfloat16>& dx, const std::vector<Bfloat16>& dup,
                  const std::vector<Bfloat16>& ddown) {
  const auto h = static_cast<std::size_t>(one.plan.shape.hidden);
  const auto f = static_cast<std::size_t>(one.plan.shape.ffn);
  const std::size_t wu = static_cast<std::size_t>(expert) * 2 * f * h;
  const std::size_t wd = static_cast<std::size_t>(expert) * f * h;
  Values up_sum(2 * f * h, 0), down_sum(f * h, 0);
  if (one.plan.options.accumulates) {
    for (std::size_t at = 0; at < 2 * f * h; ++at) {
      up_sum[at] = one.at(Tensor::up_weight_gradient, wu + at);
    }
    for (std::size_t at = 0; at < f * h; ++at) {
      down_sum[at] = one.at(Tensor::down_weight_gradient, wd + at);
    }
  }
  for (auto row = one.plan.layout.begin(expert); row < one.plan.layout.begin(expert + 1); ++row) {
    const std::size_t begin = static_cast<std::size_t>(row) * h;
    Values y(h, 0), x_gradient(h, 0);
    for (std::size_t unit = 0; unit < f; ++unit) {
      double gate = 0, linear = 0, da = 0;
      for (std::size_t at = 0; at < h; ++at) {
        const double x = one.at(Tensor::input, begin + at);
        gate += x * one.at(Tensor::up_weight, wu + unit * h + at);
        linear += x * one.at(Tensor::up_weight, wu + (f + unit) * h + at);
        da += one.at(Tensor::output_gradient, begin + at) *
              one.at(Tensor::down_weight, wd + at * f + unit);
      }
      const double s = sigmoid(gate), a = gate * s * linear;
      const double dgate = da * linear * s * (1 + gate * (1 - s)), dlinear = da * gate * s;
      for (std::size_t at = 0; at < h; ++at) {
        const double x = one.at(Tensor::input, begin + at);
        y[at] += a * one.at(Tensor::down_weight, wd + at * f + unit);
        x_gradient[at] += dgate * one.at(Tensor::up_weight, wu + unit * h + at) +
                          dlinear * one.at(Tensor::up_weight, wu + (f + unit) * h + at);
        up_sum[unit * h + at] += dgate * x;
        up_sum[(f + unit) * h + at] += dlinear * x;
        down_sum[at * f + unit] += one.at(Tensor::output_gradient, begin + at) * a;
      }
    }
    REQUIRE(error_of(output, begin, y) < tolerance);
    REQUIRE(error_of(dx, begin, x_gradient) < tolerance);
  }
  REQUIRE(error_of(dup, wu, up_sum) < tolerance);
  REQUIRE(error_of(ddown, wd, down_sum) < tolerance);
}

void check(const FfnShape& shape, const RowLayout& layout, const FfnOptions& options) {
  const unsigned seed = std::random_device{}();
  INFO("seed " << seed << ", " << shape.experts << " experts, " << layout.rows() << " rows");
  const Case one(plan_ffn(shape, layout, options), seed);
  const CublasHandle cublas;
  DeviceFfn backend(cublas.get(), nullptr);
  run_forward(one.plan, one.tensors, backend);
  run_backward(one.plan, one.tensors, backend);
  const auto output = one.result(Tensor::output), dx = one.result(Tensor::input_gradient),
             dup = one.result(Tensor::up_weight_gradient),
             ddown = one.result(Tensor::down_weight_gradient);
  for (int expert = 0; expert < shape.experts; ++expert) {
    check_expert(one, expert, output, dx, dup, ddown);
  }
}

}  // namespace

TEST_CASE("the GPU's grouped FFN and its gradients are those of fp64 loops") {
  MOESIM_NEEDS_GPU();
  check({4, 256, 344}, RowLayout::padded(4, 37), {});
  check({1, 256, 344}, RowLayout::padded(1, 100), {});
  check({5, 128, 200}, RowLayout::ragged({17, 0, 64, 1, 130}), {false, has_grouped_gemm()});
  check({5, 128, 200}, RowLayout::ragged({17, 0, 64, 1, 130}), {false, false});
  check({2, 128, 72}, RowLayout::ragged({0, 9}), {true, has_grouped_gemm()});
  check({2, 64, 64}, RowLayout::ragged({0, 0}), {});
}

TEST_CASE("the GPU's activation is within its rounding of silu(gate) up") {
  MOESIM_NEEDS_GPU();
  std::mt19937 engine(std::random_device{}());
  const std::int64_t rows = 700;
  const int ffn = 1032;
  const auto cells = static_cast<std::size_t>(rows * ffn);
  const auto hidden = draw(2 * cells, engine, 100), gradient = draw(cells, engine, 1);
  const DeviceBuffer<Bfloat16> input(hidden), upstream(gradient);
  DeviceBuffer<Bfloat16> out(cells), hidden_gradient(2 * cells);
  launch_swiglu({rows, ffn, input.data(), out.data()}, nullptr);
  launch_swiglu_backward({rows, ffn, input.data(), upstream.data(), hidden_gradient.data()},
                         nullptr);
  const auto got = out.download(), slopes = hidden_gradient.download();
  for (std::size_t cell = 0; cell < cells; ++cell) {
    const std::size_t gate_at = cell / ffn * 2 * ffn + cell % ffn;
    const auto value = [](Bfloat16 bits) { return static_cast<double>(to_float(bits)); };
    const double g = value(hidden[gate_at]), u = value(hidden[gate_at + ffn]);
    const double d = value(gradient[cell]), s = sigmoid(g);
    // One rounding to bf16, 2^-8; __expf(x) is 2^(x log2 e) with x log2 e rounded, |g| 2^-23, and
    // that cancels where the slope does. Below 2^-126 all is flushed or off.
    const double relative = 0x1.01p-8 + std::abs(g) * 0x1p-22;
    const double slack = 0x1p-20 * std::abs(d * u) * (1 + std::abs(g)) + 1e-30;
    REQUIRE(std::abs(value(got[cell]) - g * s * u) <= std::abs(g * s * u) * relative + 1e-30);
    REQUIRE(std::abs(value(slopes[gate_at + ffn]) - d * g * s) <=
            std::abs(d * g * s) * relative + 1e-30);
    const double slope = d * u * s * (1 + g * (1 - s));
    REQUIRE(std::abs(value(slopes[gate_at]) - slope) <= std::abs(slope) * relative + slack);
  }
}
