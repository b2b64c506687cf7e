#include <cmath>
#include <cstring>
#include <random>

#include "kernels/layer/device_layer.hpp"
#include "kernels/layer/reference.hpp"
#include "kernels/routing/compare.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "tests/gpu/device.hpp"
#include "tests/support/catch.hpp"

using namespace moesim::kernels;
using namespace moesim::kernels::layer;
using moesim::kernels::routing::NormaliserRule;

namespace {

using Values = std::vector<double>;

LayerProblem make(const char* router, const char* factor, Dispatch dispatch, int tokens) {
  LayerProblem problem;
  problem.router.config = ::moesim::routing::parse_router(router, 0);
  problem.router.config.capacity_factor = moesim::Decimal::parse(factor, "factor");
  problem.router.tokens = tokens;
  problem.router.experts = 8;
  problem.hidden = 128;
  problem.ffn = 200;
  problem.dispatch = dispatch;
  problem.grouped = has_grouped_gemm();
  return problem;
}

// One rank's layer on the device after a forward and a backward, and its memory here.
struct Done {
  LayerPlan plan;
  std::vector<unsigned char> host;
  LayerMemory at;  // in `host`
  routing::RouterBuffers router;
  std::int64_t ir_rows = 0;

  Done(const LayerProblem& problem, unsigned seed) : plan(plan_layer(problem)) {
    DeviceBuffer<unsigned char> memory(plan.memory_bytes());
    std::mt19937 engine(seed);
    // NaNs, and the given buffers drawn at random.
    host.assign(plan.memory_bytes(), 0x7f);
    at = carve(host.data(), plan);
    const float unit = 2 / std::sqrt(static_cast<float>(problem.hidden));
    for (const auto& [buffer, scale] : {std::pair{Buffer::x, 1.0F},
                                        {Buffer::gate_weight, unit},
                                        {Buffer::up_weight, unit},
                                        {Buffer::down_weight, unit},
                                        {Buffer::out_gradient, 1.0F}}) {
      auto* values = static_cast<Bfloat16*>(at[buffer]);
      for (std::size_t place = 0; place < plan.bytes_of(buffer) / 2; ++place) {
        values[place] = to_bfloat16(scale * (static_cast<float>(engine()) * 0x1p-31F - 1.0F));
      }
    }
    MOESIM_CUDA(cudaMemcpy(memory.data(), host.data(), host.size(), cudaMemcpyHostToDevice));
    const CublasHandle cublas;
    LayerRun run(plan, carve(memory.data(), plan));
    DeviceLayer backend(cublas.get(), nullptr);
    run.forward(backend);
    run.backward(backend);
    ir_rows = run.ir_rows();
    host = memory.download();
    at = carve(host.data(), plan);
    router = routing::carve(at[Buffer::router], problem.router);
  }

  template <typename Value = Bfloat16>
  const Value* of(Buffer buffer) const {
    return static_cast<const Value*>(at[buffer]);
  }
  ReferenceWeights weights() const {
    const std::size_t one =
        static_cast<std::size_t>(plan.problem.hidden) * static_cast<std::size_t>(plan.problem.ffn);
    ReferenceWeights all{plan.problem.hidden, plan.problem.ffn, of(Buffer::gate_weight), {}, {}};
    for (std::size_t expert = 0; expert < 8; ++expert) {
      all.up.push_back(of(Buffer::up_weight) + expert * 2 * one);
      all.down.push_back(of(Buffer::down_weight) + expert * one);
    }
    return all;
  }
};

Values slice(const Bfloat16* from, std::size_t count) {
  Values values;
  for (std::size_t at = 0; at < count; ++at) {
    values.push_back(static_cast<double>(to_float(from[at])));
  }
  return values;
}

double norm(const Values& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

double error_of(Values got, const Values& wanted) {
  for (std::size_t at = 0; at < wanted.size(); ++at) got[at] -= wanted[at];
  return norm(got) == 0 ? 0 : norm(got) / norm(wanted);
}
// About six roundings to bf16, each with a root mean square of 0.0016 (tests/kernels/layer).
constexpr double tolerance = 0.02;

void add_outer(Values& to, const Values& left, const Values& right) {
  for (std::size_t row = 0; row < left.size(); ++row) {
    for (std::size_t column = 0; column < right.size(); ++column) {
      to[row * right.size() + column] += left[row] * right[column];
    }
  }
}

void check_routes(const Done& done) {
  const routing::RouterProblem& problem = done.plan.problem.router;
  const auto* logits = done.of<float>(Buffer::logits);
  const std::vector<float> rows(logits, logits + problem.tokens * problem.experts);
  const ::moesim::routing::RankLogits rank{rows, problem.tokens};
  const auto expected = ::moesim::routing::route_group(problem.config, 8, {&rank, 1});
  REQUIRE(routing::difference(routing::listed(problem, done.router), expected.routes()) == "");
  REQUIRE(routing::wrong_ir_rows(problem, done.router) == "");
}

void check(const LayerProblem& problem) {
  const unsigned seed = std::random_device{}();
  INFO(problem.router.config.name() << " " << name_of(problem.dispatch) << " seed " << seed);
  const Done done(problem, seed);
  check_routes(done);
  const ReferenceWeights weights = done.weights();
  const auto h = static_cast<std::size_t>(problem.hidden);
  const auto one = h * static_cast<std::size_t>(problem.ffn);
  std::vector<Values> up(8, Values(2 * one, 0)), down(8, Values(one, 0));
  Values gate(8 * h, 0);
  for (int token = 0; token < problem.router.tokens; ++token) {
    const std::size_t begin = static_cast<std::size_t>(token) * h;
    const ReferenceToken in{slice(done.of(Buffer::x) + begin, h),
                            slice(done.of(Buffer::out_gradient) + begin, h),
                            rows_of_token(problem.router, done.router, token)};
    const ReferenceResult expected =
        reference_token(weights, in, problem.residual, problem.normaliser);
    REQUIRE(error_of(slice(done.of(Buffer::out) + begin, h), expected.out) < tolerance);
    REQUIRE(error_of(slice(done.of(Buffer::x_gradient) + begin, h), expected.x_gradient) <
            tolerance);
    double size = 0;
    for (const Values& row : expected.output) size = std::max(size, norm(row));
    for (int expert = 0; expert < 8; ++expert) {
      const double got =
          static_cast<double>(done.of<float>(Buffer::logit_gradient)[token * 8 + expert]);
      REQUIRE(std::abs(got - expected.logit_gradient[static_cast<std::size_t>(expert)]) <=
              0.004 * size * norm(in.out_gradient));
    }
    add_outer(gate, expected.logit_gradient, in.x);
    for (std::size_t row = 0; row < in.rows.size(); ++row) {
      const auto expert = static_cast<std::size_t>(in.rows[row].expert);
      add_outer(up[expert], expected.hidden_gradient[row], in.x);
      add_outer(down[expert], expected.output_gradient[row], expected.activated[row]);
    }
  }
  const auto* gates = done.of<float>(Buffer::gate_weight_gradient);
  CHECK(error_of(Values(gates, gates + 8 * h), gate) < 2 * tolerance);
  for (std::size_t expert = 0; expert < 8; ++expert) {
    CHECK(error_of(slice(done.of(Buffer::up_weight_gradient) + expert * 2 * one, 2 * one),
                   up[expert]) < tolerance);
    CHECK(error_of(slice(done.of(Buffer::down_weight_gradient) + expert * one, one), down[expert]) <
          tolerance);
  }
}

}  // namespace

TEST_CASE("a small layer on the GPU: index dispatch with IR") {
  MOESIM_NEEDS_GPU();
  check(make("top2+fr+ir", "0.8", Dispatch::index, 48));
}

TEST_CASE("the GPU's layer and its gradients are those of the fp64 reference") {
  MOESIM_NEEDS_GPU();
  int turn = 0;
  for (const Dispatch dispatch : {Dispatch::index, Dispatch::einsum}) {
    for (const char* router : {"top1", "top2", "top1+ir", "top2+ir", "top2+fr+ir"}) {
      for (const char* factor : {"0.5", "2"}) {
        LayerProblem problem = make(router, factor, dispatch, 320);
        problem.residual = turn % 2 == 0;
        if (turn++ % 3 == 0) problem.normaliser = NormaliserRule::differentiated;
        check(problem);
      }
    }
  }
}

TEST_CASE("the GPU's layer gives the same bits twice") {
  MOESIM_NEEDS_GPU();
  const LayerProblem problem = make("top2+ir", "1", Dispatch::index, 2000);
  const Done first(problem, 1), second(problem, 1);
  CHECK(first.ir_rows > 0);
  CHECK(first.ir_rows == second.ir_rows);
  for (const Buffer buffer : {Buffer::out, Buffer::x_gradient, Buffer::up_weight_gradient,
                              Buffer::down_weight_gradient, Buffer::gate_weight_gradient}) {
    INFO(name_of(buffer));
    CHECK(std::memcmp(first.at[buffer], second.at[buffer], first.plan.bytes_of(buffer)) == 0);
  }
}
