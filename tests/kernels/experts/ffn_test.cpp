#include "kernels/experts/ffn.hpp"

#include <cmath>
#include <random>

#include "tests/support/catch.hpp"
#include "tests/support/host_ffn.hpp"

using namespace moesim::kernels;
using namespace moesim::kernels::experts;
using moesim::kernels::testing::HostFfn;

namespace {

using Values = std::vector<double>;

double silu(double x) { return x / (1 + std::exp(-x)); }
double silu_slope(double x) {
  const double s = 1 / (1 + std::exp(-x));
  return s * (1 + x * (1 - s));
}

// 16-byte aligned bf16, first NaNs.
class Elements {
 public:
  explicit Elements(std::size_t count)
      : count_(count), pieces_(count / 8 + 1, Vector16{{nan, nan, nan, nan}}) {}
  Bfloat16* data() { return reinterpret_cast<Bfloat16*>(pieces_.data()); }
  Bfloat16& operator[](std::size_t at) { return data()[at]; }
  std::size_t size() const { return count_; }
  void draw(std::mt19937& engine, float scale) {
    for (std::size_t at = 0; at < count_; ++at) {
      data()[at] = to_bfloat16(scale * (static_cast<float>(engine()) * 0x1p-31F - 1.0F));
    }
  }
  Values values() {
    Values all;
    for (std::size_t at = 0; at < count_; ++at) {
      all.push_back(static_cast<double>(to_float(data()[at])));
    }
    return all;
  }

 private:
  static constexpr std::uint32_t nan = 0x7fc07fc0U;
  std::size_t count_;
  std::vector<Vector16> pieces_;
};

// All tensors of a plan; the inputs drawn at random.
struct Case {
  FfnPlan plan;
  std::vector<Elements> memory;
  FfnTensors tensors;

  explicit Case(const FfnPlan& given) : plan(given) {
    std::mt19937 engine(3);
    for (std::size_t at = 0; at < tensor_count; ++at) {
      memory.emplace_back(plan.elements(static_cast<Tensor>(at)));
    }
    of(Tensor::input).draw(engine, 1);
    of(Tensor::up_weight).draw(engine, 1);
    of(Tensor::down_weight).draw(engine, 1);
    of(Tensor::output_gradient).draw(engine, 1);
    if (plan.options.accumulates) {
      of(Tensor::up_weight_gradient).draw(engine, 1);
      of(Tensor::down_weight_gradient).draw(engine, 1);
    }
    for (std::size_t at = 0; at < tensor_count; ++at) tensors.at[at] = memory[at].data();
  }
  Elements& of(Tensor tensor) { return memory[static_cast<std::size_t>(tensor)]; }
};

// The same FFN and its gradients in fp64, by loops over single elements.
struct Reference {
  Values output, input_gradient, up_gradient, down_gradient;

  explicit Reference(Case& in) {
    const auto h = static_cast<std::size_t>(in.plan.shape.hidden);
    const auto f = static_cast<std::size_t>(in.plan.shape.ffn);
    const Values x = in.of(Tensor::input).values(), up = in.of(Tensor::up_weight).values(),
                 down = in.of(Tensor::down_weight).values(),
                 dy = in.of(Tensor::output_gradient).values();
    output.assign(x.size(), 0);
    input_gradient.assign(x.size(), 0);
    up_gradient.assign(up.size(), 0);
    down_gradient.assign(down.size(), 0);
    if (in.plan.options.accumulates) {
      up_gradient = in.of(Tensor::up_weight_gradient).values();
      down_gradient = in.of(Tensor::down_weight_gradient).values();
    }
    for (int expert = 0; expert < in.plan.shape.experts; ++expert) {
      const std::size_t wu = static_cast<std::size_t>(expert) * 2 * f * h;
      const std::size_t wd = static_cast<std::size_t>(expert) * h * f;
      for (std::int64_t row = in.plan.layout.begin(expert); row < in.plan.layout.begin(expert + 1);
           ++row) {
        const std::size_t at = static_cast<std::size_t>(row) * h;
        for (std::size_t unit = 0; unit < f; ++unit) {
          double gate = 0, linear = 0, da = 0;
          for (std::size_t column = 0; column < h; ++column) {
            gate += x[at + column] * up[wu + unit * h + column];
            linear += x[at + column] * up[wu + (f + unit) * h + column];
            da += dy[at + column] * down[wd + column * f + unit];
          }
          const double a = silu(gate) * linear;
          const double dgate = da * linear * silu_slope(gate);
          const double dlinear = da * silu(gate);
          for (std::size_t column = 0; column < h; ++column) {
            output[at + column] += a * down[wd + column * f + unit];
            down_gradient[wd + column * f + unit] += dy[at + column] * a;
            up_gradient[wu + unit * h + column] += dgate * x[at + column];
            up_gradient[wu + (f + unit) * h + column] += dlinear * x[at + column];
            input_gradient[at + column] +=
                dgate * up[wu + unit * h + column] + dlinear * up[wu + (f + unit) * h + column];
          }
        }
      }
    }
  }
};

// |got - wanted| over |wanted| as vectors of `width` elements each, the worst of them. A result is
// rounded to bf16 three or four times on its way, each by at most 2^-8 of its size, 0.0016 in the
// mean square: 0.0033 together; a wrong row or factor is near 1.
double worst_error(Elements& got, const Values& wanted, std::size_t width) {
  double worst = 0;
  for (std::size_t begin = 0; begin < wanted.size(); begin += width) {
    double off = 0, size = 0;
    for (std::size_t at = begin; at < begin + width; ++at) {
      off += std::pow(static_cast<double>(to_float(got[at])) - wanted[at], 2);
      size += wanted[at] * wanted[at];
    }
    if (!(off == 0 && size == 0)) worst = std::max(worst, std::sqrt(off / size));
    if (std::isnan(off)) return off;
  }
  return worst;
}
constexpr double tolerance = 0.01;

void check(const FfnShape& shape, const RowLayout& layout, const FfnOptions& options) {
  Case one(plan_ffn(shape, layout, options));
  const Reference expected(one);
  HostFfn backend;
  run_forward(one.plan, one.tensors, backend);
  run_backward(one.plan, one.tensors, backend);
  const auto h = static_cast<std::size_t>(shape.hidden);
  const auto f = static_cast<std::size_t>(shape.ffn);
  CHECK(worst_error(one.of(Tensor::output), expected.output, h) < tolerance);
  CHECK(worst_error(one.of(Tensor::input_gradient), expected.input_gradient, h) < tolerance);
  CHECK(worst_error(one.of(Tensor::up_weight_gradient), expected.up_gradient, 2 * f * h) <
        tolerance);
  CHECK(worst_error(one.of(Tensor::down_weight_gradient), expected.down_gradient, f * h) <
        tolerance);
}

}  // namespace

TEST_CASE("the grouped FFN and its gradients are those of fp64 loops") {
  check({3, 32, 40}, RowLayout::padded(3, 6), {});
  check({1, 24, 16}, RowLayout::padded(1, 11), {});
  check({4, 32, 24}, RowLayout::ragged({5, 0, 9, 1}), {});
  check({4, 32, 24}, RowLayout::ragged({5, 0, 9, 1}), {false, false});
  check({2, 16, 48}, RowLayout::ragged({0, 7}), {true, true});
  check({2, 16, 16}, RowLayout::padded(2, 0), {});
}

TEST_CASE("the activation kernel is silu(gate) up, its backward the derivative") {
  // Rows and FFN sizes that fill a warp's pieces, leave some, and pass a grid's step.
  for (const int ffn : {8, 40, 1032}) {
    const std::int64_t rows = 13;
    std::mt19937 engine(static_cast<unsigned>(ffn));
    const auto cells = static_cast<std::size_t>(rows * ffn);
    Elements hidden(2 * cells), gradient(cells), out(cells), hidden_gradient(2 * cells);
    hidden.draw(engine, 12);  // both tails of the sigmoid
    gradient.draw(engine, 1);
    hidden[0] = to_bfloat16(-200.0F);  // e^200 overflows fp32
    hidden[1] = to_bfloat16(200.0F);
    HostFfn backend;
    backend.activate({rows, ffn, hidden.data(), out.data()});
    backend.activate_backward({rows, ffn, hidden.data(), gradient.data(), hidden_gradient.data()});
    const Values h = hidden.values(), d = gradient.values();
    for (std::size_t cell = 0; cell < cells; ++cell) {
      const auto width = static_cast<std::size_t>(ffn);
      const std::size_t gate = cell / width * 2 * width + cell % width;
      const std::size_t up = gate + width;
      // One rounding to bf16, 2^-8, on fp32 arithmetic; subnormal results are off by themselves.
      const auto is = [](Bfloat16 got, double wanted) {
        return std::abs(static_cast<double>(to_float(got)) - wanted) <=
               std::abs(wanted) * 0x1.01p-8 + 1e-36;
      };
      REQUIRE(is(out[cell], silu(h[gate]) * h[up]));
      REQUIRE(is(hidden_gradient[up], d[cell] * silu(h[gate])));
      // 1 + g (1 - s) cancels near its zero: fp32's 2^-22 of the terms beside the bf16 rounding.
      const double slope = d[cell] * h[up] * silu_slope(h[gate]);
      const double slack = 0x1p-21 * std::abs(d[cell] * h[up]) * (1 + std::abs(h[gate])) + 1e-36;
      REQUIRE(std::abs(static_cast<double>(to_float(hidden_gradient[gate])) - slope) <=
              std::abs(slope) * 0x1.01p-8 + slack);
    }
  }
}
