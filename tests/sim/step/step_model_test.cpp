#include "sim/step/step_model.hpp"

#include <cmath>
#include <numeric>

#include "sim/engine/engine.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/scenarios.hpp"

namespace moesim::step {
namespace {

using routing::IrCompute;
using routing::Rectification;

scenario::Scenario small_scenario() { return support::small_prefill(); }

std::map<std::string, int> operations_by_name(const StepModel& model) {
  std::map<std::string, int> count;
  for (const engine::Operation& operation : model.program().operations) ++count[operation.name];
  return count;
}

double step_ms(StepModel& model, const routing::ReplicaRouting& routing) {
  network::IdleFabric fabric;
  const engine::Execution execution =
      engine::run(model.program(), model.durations(&routing, StepModel::no_errors), fabric);
  return execution.end_of(execution.slowest_rank()).ms();
}

// Routing with the given rectified rows on every GPU.
routing::ReplicaRouting routing_with(const scenario::Scenario& scenario,
                                     const std::vector<std::int32_t>& ir_rows) {
  routing::ReplicaRouting routing;
  for (int layer = 0; layer < scenario.model->moe_layers(); ++layer) {
    routing::LayerRouting one;
    one.capacity = scenario.router.capacity(scenario.tokens_per_gpu, scenario.experts);
    one.exchanged_capacity = one.capacity;
    one.ir_rows = ir_rows;
    routing.layers.push_back(one);
  }
  return routing;
}

std::vector<std::int32_t> on_all(const scenario::Scenario& scenario, std::int32_t rows) {
  return std::vector<std::int32_t>(static_cast<std::size_t>(scenario.gpus), rows);
}

}  // namespace

TEST_CASE("a forward pass runs two all-to-alls per MoE layer, a checkpointed step six") {
  scenario::Scenario scenario = small_scenario();
  const int moe_layers = scenario.model->moe_layers();
  REQUIRE(moe_layers == 2);
  CHECK(operations_by_name(StepModel(scenario))["nccl:all_to_all"] == 2 * moe_layers);
  scenario.mode = scenario::Mode::train;
  CHECK(operations_by_name(StepModel(scenario))["nccl:all_to_all"] == 4 * moe_layers);
  scenario.checkpointing = scenario::Checkpointing::full;
  auto count = operations_by_name(StepModel(scenario));
  CHECK(count["nccl:all_to_all"] == 6 * moe_layers);
  CHECK(count["expert_ffn"] == 2 * moe_layers);
  CHECK(count["expert_ffn_backward"] == moe_layers);
}

TEST_CASE("a dense router leaves no trace of MoE") {
  scenario::Scenario scenario = small_scenario();
  scenario.router = routing::parse_router("dense", 0);
  auto count = operations_by_name(StepModel(scenario));
  CHECK(count["nccl:all_to_all"] == 0);
  CHECK(count["dense_ffn"] == scenario.model->layers);
}

TEST_CASE("a balanced step on an idle machine is the sum of its kernels") {
  const scenario::Scenario scenario = small_scenario();
  StepModel model(scenario);
  const routing::ReplicaRouting routing = routing_with(scenario, on_all(scenario, 0));
  const engine::Durations durations = model.durations(&routing, StepModel::no_errors);
  const Picoseconds sum =
      std::accumulate(durations.uniform.begin(), durations.uniform.end(), Picoseconds(0));
  network::IdleFabric fabric;
  const engine::Execution execution = engine::run(model.program(), durations, fabric);
  for (int rank = 0; rank < scenario.gpus; ++rank) CHECK(execution.end_of(rank) == sum);
}

TEST_CASE("rectified rows cost time on the GPU that has them, and all others wait for it") {
  scenario::Scenario scenario = small_scenario();
  scenario.router.rectification = Rectification::gpu;
  StepModel model(scenario);
  const double none = step_ms(model, routing_with(scenario, on_all(scenario, 0)));
  std::vector<std::int32_t> one_busy = on_all(scenario, 0);
  one_busy[5] = 2000;
  const double busy = step_ms(model, routing_with(scenario, one_busy));
  const double all_busy = step_ms(model, routing_with(scenario, on_all(scenario, 2000)));
  CHECK(busy > none);
  CHECK(busy == Approx(all_busy).epsilon(1e-9));
}

TEST_CASE("where IR runs decides what it costs") {
  scenario::Scenario scenario = small_scenario();
  scenario.router.rectification = Rectification::gpu;
  const auto cost_of = [&](IrCompute when, std::int32_t rows) {
    scenario.router.ir_compute = when;
    StepModel model(scenario);
    return step_ms(model, routing_with(scenario, on_all(scenario, rows)));
  };
  // A few rows hide behind the dispatch all-to-all; as many as the capacity do not.
  const double separate = cost_of(IrCompute::separate, 400);
  const double overlapped = cost_of(IrCompute::overlap, 400);
  CHECK(overlapped < separate);
  CHECK(overlapped >= cost_of(IrCompute::overlap, 0));
  // A few rows in a call of their own read all weights for them; grouped, they ride along.
  CHECK(cost_of(IrCompute::grouped, 40) < cost_of(IrCompute::separate, 40));
  CHECK(cost_of(IrCompute::grouped, 0) == Approx(cost_of(IrCompute::separate, 0)));
}

TEST_CASE("ir@node sends its rows over NVLink and back, ir does not") {
  scenario::Scenario scenario = small_scenario();
  scenario.router.rectification = Rectification::gpu;
  const int plain = operations_by_name(StepModel(scenario))["nccl:all_to_all"];
  StepModel on_gpu(scenario);
  scenario.router.rectification = Rectification::node;
  StepModel on_node(scenario);
  CHECK(operations_by_name(on_node)["nccl:all_to_all"] == plain + 2 * scenario.model->moe_layers());
  const routing::ReplicaRouting routing = routing_with(scenario, on_all(scenario, 400));
  CHECK(step_ms(on_node, routing) > step_ms(on_gpu, routing));
  // Nothing to rectify, nothing to send.
  const routing::ReplicaRouting none = routing_with(scenario, on_all(scenario, 0));
  CHECK(step_ms(on_node, none) == step_ms(on_gpu, none));
}

TEST_CASE("einsum dispatch costs 4 E C S h FLOPs a layer that index dispatch does not") {
  scenario::Scenario scenario = small_scenario();
  const std::int64_t capacity = 1024;
  const auto gemm_us = [&](const Kernels& kernels) {
    double sum = 0;
    for (const Kernel& kernel : kernels) {
      if (kernel.kernel_class == KernelClass::einsum) sum += kernel.estimate.time_us;
    }
    return sum;
  };
  scenario.dispatch = scenario::Dispatch::index;
  CHECK(gemm_us(KernelPricer(scenario).dispatch(Pass::forward, capacity)) == 0);
  scenario.dispatch = scenario::Dispatch::einsum;
  const KernelPricer einsum(scenario);
  const std::int64_t slots = scenario.experts * capacity;
  CHECK(gemm_us(einsum.dispatch(Pass::forward, capacity)) ==
        Approx(scenario.profile->gemm(slots, 4096, 4096).time_us));
  // Backward: combine twice, dispatch once (the mask has no gradient).
  const auto gemms = [&](const Kernels& kernels) {
    int count = 0;
    for (const Kernel& kernel : kernels) {
      count += kernel.kernel_class == KernelClass::einsum ? 1 : 0;
    }
    return count;
  };
  CHECK(gemms(einsum.combine(Pass::backward, capacity)) == 2);
  CHECK(gemms(einsum.dispatch(Pass::backward, capacity)) == 1);
}

TEST_CASE("an all-to-all moves (E/P) C h b bytes per pair") {
  scenario::Scenario scenario = small_scenario();
  scenario.tokens_per_gpu = 16384;
  // The paper's model at CF 1: C = 2048, 16.8 MB per pair, 117.4 MB remote per GPU
  // (sim/step/README.md).
  const double buffer = KernelPricer(scenario).dispatch_bytes(2048);
  CHECK(buffer / scenario.expert_parallel == Approx(16.8e6).epsilon(0.003));
  CHECK(buffer * 7 / 8 == Approx(117.4e6).epsilon(0.001));
}

TEST_CASE("ZeRO reduces and gathers what it shards") {
  scenario::Scenario scenario = small_scenario();
  scenario.mode = scenario::Mode::train;
  const auto with = [&](int zero) {
    scenario.zero = zero;
    return operations_by_name(StepModel(scenario));
  };
  CHECK(with(0)["nccl:all_reduce"] == 2);  // dense, experts
  CHECK(with(0)["nccl:all_gather"] == 0);
  CHECK(with(1)["nccl:reduce_scatter"] == 2);
  CHECK(with(1)["nccl:all_gather"] == 2);
  CHECK(with(2) == with(1));
  // Each layer's dense parameters before its forward and its backward pass, experts likewise.
  CHECK(with(3)["nccl:all_gather"] == 2 * (4 + 2) + 2);  // and the embedding, and the head
}

TEST_CASE("gradient accumulation repeats the passes and reduces once") {
  scenario::Scenario scenario = small_scenario();
  scenario.mode = scenario::Mode::train;
  scenario.micro_steps = 3;
  auto count = operations_by_name(StepModel(scenario));
  CHECK(count["attention"] == 3 * scenario.model->layers);
  CHECK(count["nccl:reduce_scatter"] == 2);
  CHECK(count["gradient_accumulation"] == 2);
  CHECK(count["optimizer"] == 1);
}

TEST_CASE("gradients reduced during the backward pass take no longer than after it") {
  scenario::Scenario scenario = small_scenario();
  scenario.mode = scenario::Mode::train;
  const auto time_of = [&](scenario::GradientOverlap overlap) {
    scenario.gradient_overlap = overlap;
    StepModel model(scenario);
    return step_ms(model, routing_with(scenario, on_all(scenario, 0)));
  };
  CHECK(time_of(scenario::GradientOverlap::gradient) < time_of(scenario::GradientOverlap::none));
}

TEST_CASE("curve errors are strata of a normal: their median replica is the curve itself") {
  scenario::Scenario scenario = small_scenario();
  scenario.replicas = 9;
  StepModel model(scenario);
  const routing::ReplicaRouting routing = routing_with(scenario, on_all(scenario, 0));
  const double exact = model.durations(&routing, StepModel::no_errors).uniform[1].ms();
  std::vector<double> drawn;
  for (int replica = 0; replica < 9; ++replica) {
    drawn.push_back(model.durations(&routing, replica).uniform[1].ms());
  }
  std::sort(drawn.begin(), drawn.end());
  CHECK(drawn.front() < exact);
  CHECK(drawn.back() > exact);
  CHECK(drawn[4] == Approx(exact).epsilon(0.02));
}

TEST_CASE("one replica alone has no curve error") {
  scenario::Scenario scenario = small_scenario();
  scenario.replicas = 1;
  StepModel model(scenario);
  const routing::ReplicaRouting routing = routing_with(scenario, on_all(scenario, 0));
  CHECK(model.durations(&routing, 0).uniform ==
        model.durations(&routing, StepModel::no_errors).uniform);
}

TEST_CASE("calibration multiplies the kernels of its class and no others") {
  const scenario::Scenario scenario = small_scenario();
  const routing::ReplicaRouting routing = routing_with(scenario, on_all(scenario, 0));
  Calibration doubled;
  doubled.multiplier.assign(kernel_class_count, 2.0);
  StepModel plain(scenario);
  StepModel twice(scenario, doubled);
  CHECK(step_ms(twice, routing) == Approx(2 * step_ms(plain, routing)).epsilon(1e-9));
  Calibration mask_only;
  mask_only.multiplier[static_cast<std::size_t>(KernelClass::mask)] = 3;
  StepModel index_dispatch(scenario, mask_only);
  CHECK(step_ms(index_dispatch, routing) == step_ms(plain, routing));
}

}  // namespace moesim::step
