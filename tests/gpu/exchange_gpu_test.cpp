#include <cmath>
#include <random>

#include "kernels/base/bfloat16.cuh"
#include "kernels/base/cublas.hpp"
#include "kernels/base/device_buffer.hpp"
#include "kernels/exchange/einsum.hpp"
#include "kernels/routing/router.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "tests/gpu/device.hpp"
#include "tests/support/catch.hpp"

using namespace moesim::kernels;
using namespace moesim::kernels::exchange;
using moesim::kernels::routing::DeviceRouter;
using moesim::kernels::routing::RouterBuffers;
using moesim::kernels::routing::RouterProblem;

namespace {

constexpr int hidden = 1032;  // no multiple of a warp's 256 elements
constexpr int tokens = 700;
constexpr int experts = 8;

std::vector<Bfloat16> random_rows(std::size_t rows, unsigned seed) {
  std::mt19937 engine(seed);
  std::vector<Bfloat16> values(rows * hidden);
  for (Bfloat16& value : values) {
    value = to_bfloat16(static_cast<float>(engine()) * 0x1p-31F - 1.0F);
  }
  return values;
}

// A routed layer on the device, and its arrays here.
struct Layer {
  RouterProblem problem;
  DeviceBuffer<unsigned char> memory;
  RouteMap map;
  std::vector<unsigned char> host;
  RouterBuffers device, at;
  std::size_t rows = 0;

  explicit Layer(const char* name) {
    problem.config = moesim::routing::parse_router(name, 0);
    problem.config.capacity_factor = moesim::Decimal::parse("1.1", "factor");
    problem.tokens = tokens;
    problem.experts = experts;
    memory = DeviceBuffer<unsigned char>(buffer_bytes(problem));
    const DeviceRouter router(problem, memory.data());
    std::mt19937 engine(std::random_device{}());
    std::vector<float> logits(static_cast<std::size_t>(tokens) * experts);
    for (float& value : logits) value = static_cast<float>(engine()) * 0x1p-30F;
    const DeviceBuffer<float> input(logits);
    router.route(input.data(), nullptr);
    device = router.buffers();
    host = memory.download();
    at = carve(host.data(), problem);
    map = {tokens,        experts,     problem.choices(), problem.capacity(), problem.stride(),
           device.expert, device.slot, device.kept_rows,  device.ir_row};
    rows = static_cast<std::size_t>(experts) * static_cast<std::size_t>(problem.capacity());
  }
  std::int64_t row(int token, int choice) const {
    const std::int64_t place = choice * problem.stride() + token;
    return at.slot[place] < 0
               ? -1
               : std::int64_t{at.expert[place]} * problem.capacity() + at.slot[place];
  }
};

std::size_t place(std::int64_t row, int column) {
  return static_cast<std::size_t>(row) * hidden + static_cast<std::size_t>(column);
}

}  // namespace

TEST_CASE("the GPU's permute copies tokens to their rows and clears the padding") {
  MOESIM_NEEDS_GPU();
  for (const char* name : {"top1", "top2", "top2+fr+ir"}) {
    const Layer layer(name);
    const auto x = random_rows(tokens, 1);
    const DeviceBuffer<Bfloat16> input(x);
    DeviceBuffer<Bfloat16> rows(layer.rows * hidden), ir_rows(x.size());
    rows.fill(0x7f);
    launch_dispatch({layer.map, row_vectors(hidden, ElementType::bfloat16), input.data(),
                     rows.data(), ir_rows.data()},
                    nullptr);
    const auto sent = rows.download();
    const auto rectified = ir_rows.download();
    std::vector<bool> filled(layer.rows, false);
    for (int token = 0; token < tokens; ++token) {
      for (int choice = 0; choice < layer.problem.choices(); ++choice) {
        const std::int64_t row = layer.row(token, choice);
        if (row < 0) continue;
        filled[static_cast<std::size_t>(row)] = true;
        for (int column = 0; column < hidden; ++column) {
          REQUIRE(sent[place(row, column)].bits == x[place(token, column)].bits);
        }
      }
      if (layer.at.ir_row == nullptr || layer.at.ir_row[token] < 0) continue;
      for (int column = 0; column < hidden; ++column) {
        REQUIRE(rectified[place(layer.at.ir_row[token], column)].bits ==
                x[place(token, column)].bits);
      }
    }
    for (std::size_t row = 0; row < layer.rows; ++row) {
      for (int column = 0; column < hidden && !filled[row]; ++column) {
        REQUIRE(sent[place(static_cast<std::int64_t>(row), column)].bits == 0);
      }
    }
  }
}

TEST_CASE("the GPU's combine and its backward weigh the right rows") {
  MOESIM_NEEDS_GPU();
  for (const char* name : {"top1", "top2", "top2+fr+ir", "top7+fr+ir", "top8"}) {
    const Layer layer(name);
    const auto x = random_rows(tokens, 1), y = random_rows(layer.rows, 2),
               z = random_rows(tokens, 3);
    const DeviceBuffer<Bfloat16> residual(x), rows(y), ir_rows(z);
    DeviceBuffer<Bfloat16> out(x.size()), row_gradient(y.size()), ir_gradient(z.size());
    const int vectors = row_vectors(hidden, ElementType::bfloat16);
    launch_combine({layer.map, vectors, layer.device.weight, layer.device.ir_weight, rows.data(),
                    ir_rows.data(), residual.data(), out.data()},
                   ElementType::bfloat16, nullptr);
    const std::size_t routes =
        static_cast<std::size_t>(layer.problem.stride() * layer.problem.choices());
    DeviceBuffer<float> upstream(routes), ir_upstream(tokens);
    launch_combine_backward({layer.map, vectors, layer.device.weight, layer.device.ir_weight,
                             rows.data(), ir_rows.data(), residual.data(), row_gradient.data(),
                             ir_gradient.data(), upstream.data(), ir_upstream.data()},
                            ElementType::bfloat16, nullptr);
    const auto combined = out.download();
    const auto gradient = row_gradient.download();
    const auto u = upstream.download();
    for (int token = 0; token < tokens; ++token) {
      std::vector<float> sum(hidden, 0.0F);
      for (int choice = 0; choice < layer.problem.choices(); ++choice) {
        const std::int64_t row = layer.row(token, choice);
        if (row < 0) continue;
        const auto route = static_cast<std::size_t>(choice * layer.problem.stride() + token);
        double product = 0;
        for (int column = 0; column < hidden; ++column) {
          const float value = to_float(y[place(row, column)]);
          const float d = to_float(x[place(token, column)]);
          float& total = sum[static_cast<std::size_t>(column)];
          total = std::fma(layer.at.weight[route], value, total);
          product += static_cast<double>(value) * static_cast<double>(d);
          REQUIRE(gradient[place(row, column)].bits ==
                  to_bfloat16(d * layer.at.weight[route]).bits);
        }
        REQUIRE(static_cast<double>(u[route]) == Approx(product).margin(1e-6 * hidden));
      }
      for (int column = 0; column < hidden; ++column) {
        float total = sum[static_cast<std::size_t>(column)];
        if (layer.at.ir_row != nullptr && layer.at.ir_row[token] >= 0) {
          total = std::fma(layer.at.ir_weight[token],
                           to_float(z[place(layer.at.ir_row[token], column)]), total);
        }
        total += to_float(x[place(token, column)]);
        REQUIRE(combined[place(token, column)].bits == to_bfloat16(total).bits);
      }
    }
  }
}

TEST_CASE("the GPU's combine rounds every kind of number as the host does") {
  MOESIM_NEEDS_GPU();
  const Layer layer("top2");
  std::mt19937 engine(4);
  std::vector<Bfloat16> values(layer.rows * hidden);
  // Numbers of all sizes, infinities, NaNs.
  for (Bfloat16& value : values) value.bits = static_cast<std::uint16_t>(engine());
  const DeviceBuffer<Bfloat16> rows(values);
  DeviceBuffer<Bfloat16> out(static_cast<std::size_t>(tokens) * hidden);
  CombineArguments in;
  in.map = layer.map;
  in.row_vectors = row_vectors(hidden, ElementType::bfloat16);
  in.weight = layer.device.weight;
  in.rows = rows.data();
  in.out = out.data();
  launch_combine(in, ElementType::bfloat16, nullptr);
  const auto combined = out.download();
  for (int token = 0; token < tokens; ++token) {
    for (int column = 0; column < hidden; ++column) {
      float total = 0;
      for (int choice = 0; choice < layer.problem.choices(); ++choice) {
        const std::int64_t row = layer.row(token, choice);
        const auto route = static_cast<std::size_t>(choice * layer.problem.stride() + token);
        if (row < 0) continue;
        total = std::fma(layer.at.weight[route], to_float(values[place(row, column)]), total);
      }
      REQUIRE(combined[place(token, column)].bits == to_bfloat16(total).bits);
    }
  }
}

TEST_CASE("weights and permute in one launch of the GPU are those of two") {
  MOESIM_NEEDS_GPU();
  for (const char* name : {"top1", "top2", "top8", "top2+fr"}) {
    const Layer layer(name);
    const DeviceBuffer<Bfloat16> input(random_rows(tokens, 1));
    DeviceBuffer<Bfloat16> apart(layer.rows * hidden), fused(layer.rows * hidden);
    apart.fill(0x7f);
    fused.fill(0x7f);
    DeviceBuffer<float> weight(
        static_cast<std::size_t>(layer.problem.stride() * layer.problem.choices()));
    const int vectors = row_vectors(hidden, ElementType::bfloat16);
    launch_dispatch({layer.map, vectors, input.data(), apart.data(), nullptr}, nullptr);
    auto weigh = weigh_arguments(layer.problem, layer.device);
    weigh.weight = weight.data();
    launch_weigh_and_dispatch(weigh, {layer.map, vectors, input.data(), fused.data(), nullptr},
                              nullptr);
    const auto two = apart.download(), one = fused.download();
    for (std::size_t at = 0; at < two.size(); ++at) REQUIRE(one[at].bits == two[at].bits);
    const auto found = weight.download();
    for (int choice = 0; choice < layer.problem.choices(); ++choice) {
      for (int token = 0; token < tokens; ++token) {
        const auto route = static_cast<std::size_t>(choice * layer.problem.stride() + token);
        REQUIRE(found[route] == layer.at.weight[route]);
      }
    }
  }
}

TEST_CASE("einsum dispatch and combine give what permute and combine give") {
  MOESIM_NEEDS_GPU();
  const CublasHandle cublas;
  const Layer layer("top2");
  REQUIRE(layer.rows % 8 == 0);
  const auto x = random_rows(tokens, 1), y = random_rows(layer.rows, 2);
  const DeviceBuffer<Bfloat16> input(x), values(y);
  DeviceBuffer<Bfloat16> rows(y.size()), sent(y.size()), mask(layer.rows * tokens);
  DeviceBuffer<Bfloat16> out(x.size()), combined(x.size());
  EinsumArguments in;
  in.map = layer.map;
  in.hidden = hidden;
  in.tokens = input.data();
  in.rows = rows.data();
  in.mask = mask.data();
  in.weight = layer.device.weight;
  in.out = out.data();
  const int vectors = row_vectors(hidden, ElementType::bfloat16);
  einsum_dispatch(in, cublas.get(), nullptr);
  launch_dispatch({layer.map, vectors, input.data(), sent.data(), nullptr}, nullptr);
  const auto by_einsum = rows.download(), by_permute = sent.download();
  for (std::size_t at = 0; at < by_einsum.size(); ++at) {
    REQUIRE(to_float(by_einsum[at]) == to_float(by_permute[at]));  // sums of one term
  }
  MOESIM_CUDA(cudaMemcpy(rows.data(), values.data(), y.size() * 2, cudaMemcpyDeviceToDevice));
  einsum_combine(in, cublas.get(), nullptr);
  CombineArguments combine;
  combine.map = layer.map;
  combine.row_vectors = vectors;
  combine.weight = layer.device.weight;
  combine.rows = values.data();
  combine.out = combined.data();
  launch_combine(combine, ElementType::bfloat16, nullptr);
  const auto first = out.download(), second = combined.download();
  for (std::size_t at = 0; at < first.size(); ++at) {
    // The mask holds weights rounded to bf16, and so are both results: 2^-8 each.
    REQUIRE(static_cast<double>(to_float(first[at])) ==
            Approx(static_cast<double>(to_float(second[at]))).margin(0.012));
  }
}
