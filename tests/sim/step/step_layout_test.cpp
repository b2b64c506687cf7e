// What a step does on layouts off the beaten track: one GPU, expert groups that do not fit a node,
// ZeRO with gradient accumulation, attention that is not plain causal self-attention.
#include <algorithm>

#include "sim/base/error.hpp"
#include "sim/engine/engine.hpp"
#include "sim/network/ports/port_model.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/step/step_model.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/scenarios.hpp"

namespace moesim::step {
namespace {

using routing::Rectification;

scenario::Scenario scenario_of(const std::string& model_name, int layers) {
  scenario::Scenario scenario = support::scenario_of(model_name, layers);
  scenario.replicas = 1;
  return scenario;
}
scenario::Scenario small_scenario() { return scenario_of("llama2-7b-moe8", 4); }

routing::ReplicaRouting balanced(const scenario::Scenario& scenario, std::int32_t ir_rows) {
  routing::ReplicaRouting routing;
  for (int layer = 0; layer < scenario.model->moe_layers(); ++layer) {
    routing::LayerRouting one;
    one.capacity = scenario.router.capacity(scenario.tokens_per_gpu, scenario.experts);
    one.exchanged_capacity = one.capacity;
    one.ir_rows.assign(static_cast<std::size_t>(scenario.gpus), ir_rows);
    routing.layers.push_back(one);
  }
  return routing;
}

int count(const StepModel& model, const std::string& name) {
  const auto& operations = model.program().operations;
  return static_cast<int>(
      std::count_if(operations.begin(), operations.end(),
                    [&](const engine::Operation& operation) { return operation.name == name; }));
}

double duration_ms(StepModel& model, const routing::ReplicaRouting& routing,
                   const std::string& name) {
  const engine::Durations durations = model.durations(&routing, StepModel::no_errors);
  double sum = 0;
  for (std::size_t op = 0; op < model.program().operations.size(); ++op) {
    if (model.program().operations[op].name != name) continue;
    sum += durations.of(static_cast<int>(op), 0).ms();
  }
  return sum;
}

int first(const StepModel& model, const std::string& name) {
  const auto& operations = model.program().operations;
  const auto found =
      std::find_if(operations.begin(), operations.end(),
                   [&](const engine::Operation& operation) { return operation.name == name; });
  REQUIRE(found != operations.end());
  return static_cast<int>(found - operations.begin());
}

}  // namespace

TEST_CASE("every operation waits for earlier ones only, whatever the layout") {
  for (const int gpus : {1, 8, 16}) {
    for (const int zero : {0, 1, 2, 3}) {
      for (const scenario::GradientOverlap overlap :
           {scenario::GradientOverlap::none, scenario::GradientOverlap::gradient}) {
        scenario::Scenario scenario = small_scenario();
        scenario.gpus = gpus;
        scenario.expert_parallel = std::min(gpus, 8);
        scenario.zero = zero;
        scenario.gradient_overlap = overlap;
        scenario.micro_steps = 2;
        StepModel model(scenario);
        const auto& operations = model.program().operations;
        for (int op = 0; op < static_cast<int>(operations.size()); ++op) {
          for (const int before : operations[static_cast<std::size_t>(op)].after) {
            CHECK(before >= 0);
            CHECK(before < op);
          }
        }
        network::IdleFabric fabric;
        const routing::ReplicaRouting routing = balanced(scenario, 0);
        const engine::Execution execution =
            engine::run(model.program(), model.durations(&routing, StepModel::no_errors), fabric);
        CHECK(execution.end_of(gpus - 1) > Picoseconds(0));
      }
    }
  }
}

TEST_CASE("ir@node sends nothing where every GPU holds all experts") {
  scenario::Scenario scenario = small_scenario();
  scenario.mode = scenario::Mode::prefill;
  scenario.expert_parallel = 1;
  scenario.router.rectification = Rectification::node;
  CHECK(count(StepModel(scenario), "nccl:all_to_all") == 0);
}

TEST_CASE("ir@node's rows stay inside their expert group") {
  // Groups of 4 in a domain of 8: all-to-alls of the rows are those of 4 GPUs.
  scenario::Scenario scenario = small_scenario();
  scenario.mode = scenario::Mode::prefill;
  scenario.expert_parallel = 4;
  const std::int32_t rows = 400;
  const routing::ReplicaRouting routing = balanced(scenario, rows);
  StepModel plain(scenario);
  scenario.router.rectification = Rectification::node;
  StepModel node(scenario);
  const double bytes = 2.0 * rows * 4096;
  const double extra = duration_ms(node, routing, "nccl:all_to_all") -
                       duration_ms(plain, routing, "nccl:all_to_all");
  const double one =
      scenario.profile->collective(profile::Collective::all_to_all, 4, bytes).time_us;
  CHECK(extra == Approx(2 * 2 * one * 1e-3).epsilon(1e-6));
}

TEST_CASE("an expert group that straddles nodes sets the time of all groups") {
  // Groups of 6 on nodes of 8: the first lies in one node, the second has 2 GPUs on one node and 4
  // on the next: each of the 2 sends 4/6 of its buffer through its NIC.
  scenario::Scenario scenario = small_scenario();
  scenario.mode = scenario::Mode::prefill;
  scenario.gpus = 24;
  scenario.expert_parallel = 6;
  scenario.experts = 6;
  const routing::ReplicaRouting routing = balanced(scenario, 0);
  StepModel model(scenario);
  const double bytes = 2.0 * 6 * static_cast<double>(routing.layers[0].capacity) * 4096;
  const std::vector<int> straddling = {6, 7, 8, 9, 10, 11};
  const network::PortModel::Crossed one =
      network::PortModel(scenario.profile, scenario.cluster)
          .across(profile::Collective::all_to_all, straddling, bytes);
  CHECK(one.stream_us == Approx(4.0 / 6 * bytes /
                                (scenario.cluster->effective_nic().bytes_per_second * 0.95) * 1e6));
  const double one_us = one.estimate.time_us;
  CHECK(duration_ms(model, routing, "nccl:all_to_all") == Approx(2 * 2 * one_us * 1e-3));
}

TEST_CASE("from ZeRO-2 on each micro-step's gradients are reduced, then added to the shard") {
  scenario::Scenario scenario = small_scenario();
  scenario.micro_steps = 3;
  const routing::ReplicaRouting routing = balanced(scenario, 0);
  scenario.zero = 1;
  StepModel whole(scenario);
  CHECK(count(whole, "nccl:reduce_scatter") == 2);
  CHECK(count(whole, "gradient_accumulation") == 2);
  CHECK(first(whole, "gradient_accumulation") < first(whole, "nccl:reduce_scatter"));
  scenario.zero = 2;
  StepModel shards(scenario);
  CHECK(count(shards, "nccl:reduce_scatter") == 3 * 2);
  CHECK(count(shards, "gradient_accumulation") == 2);
  CHECK(first(shards, "gradient_accumulation") > first(shards, "nccl:reduce_scatter"));
  CHECK(duration_ms(shards, routing, "gradient_accumulation") <
        0.6 * duration_ms(whole, routing, "gradient_accumulation"));
}

TEST_CASE("overlapped gradients are added up before they are reduced") {
  scenario::Scenario scenario = small_scenario();
  scenario.micro_steps = 2;
  scenario.gradient_overlap = scenario::GradientOverlap::gradient;
  const StepModel model(scenario);
  CHECK(first(model, "gradient_accumulation") < first(model, "nccl:reduce_scatter"));
  // Four layers and what belongs to none; experts in two of them.
  CHECK(count(model, "gradient_accumulation") == 5);
  CHECK(count(model, "nccl:reduce_scatter") == 5 + 2);
}

TEST_CASE("tokens do not wait for overlapped gradients") {
  scenario::Scenario scenario = small_scenario();
  scenario.gradient_overlap = scenario::GradientOverlap::gradient;
  const StepModel model(scenario);
  const auto& operations = model.program().operations;
  const auto is_reduction = [&](int op) {
    return operations[static_cast<std::size_t>(op)].stream == engine::StreamKind::gradients;
  };
  for (int op = 0; op < static_cast<int>(operations.size()); ++op) {
    const engine::Operation& operation = operations[static_cast<std::size_t>(op)];
    CHECK(is_reduction(op) == (operation.name == "nccl:reduce_scatter"));
    if (std::any_of(operation.after.begin(), operation.after.end(), is_reduction)) {
      CHECK(operation.name == "optimizer");
    }
  }
}

TEST_CASE(
    "overlapped gradients get on in a quarter of the pass, and not beside tokens on their links") {
  // Dense layers 0 and 2 have gradients of the same size. Those of layer 2 fall beside MoE layer 1
  // with its exchanges, those of layer 0 beside the embedding.
  scenario::Scenario scenario = small_scenario();
  scenario.gradient_overlap = scenario::GradientOverlap::gradient;
  // What is left of a layer's reduction if it loses `share` of the exchanges beside it.
  const auto alone_us = [&](int layer, double share) {
    StepModel model(scenario);
    const routing::ReplicaRouting routing = balanced(scenario, 0);
    engine::Durations durations = model.durations(&routing, StepModel::no_errors);
    model.slow_gradients(durations, StepModel::no_errors);
    double us = 0;
    bool beside = false;
    for (int op = 0; op < static_cast<int>(model.program().operations.size()); ++op) {
      const engine::Operation& operation = model.program().operations[static_cast<std::size_t>(op)];
      const double time_us = durations.of(op, 0).us();
      if (operation.stream == engine::StreamKind::gradients) {
        beside = operation.layer == layer;
        if (beside) us += time_us;
      } else if (operation.name == "optimizer") {
        beside = false;
      } else if (beside) {
        us -= (operation.stream == engine::StreamKind::communication ? share : 0.75) * time_us;
      }
    }
    return us;
  };
  REQUIRE(scenario.cluster->gpus_per_domain == 8);
  // 16 GPUs in two nodes reduce between them, tokens stay inside: other links.
  CHECK(alone_us(2, 0.75) == Approx(alone_us(0, 0.75)));
  CHECK(alone_us(2, 1) < 0.99 * alone_us(0, 1));
  scenario.expert_parallel = 16;  // tokens take the same NICs
  CHECK(alone_us(2, 1) == Approx(alone_us(0, 1)));
  scenario.gpus = 8;  // all of it over NVLink
  scenario.expert_parallel = 4;
  CHECK(alone_us(2, 1) == Approx(alone_us(0, 1)));
}

TEST_CASE("a step's parameters are the model's, norms and cross-attention included") {
  // The ZeRO-0 update touches each parameter of the GPU once: 28 bytes of Adam.
  for (const char* name : {"llama2-7b-moe8", "switch-base-8", "deepseek-v2-lite"}) {
    scenario::Scenario scenario = scenario_of(name, 0);
    scenario.router = routing::parse_router("topk", scenario.model->moe->top_k);
    scenario.experts = scenario.model->moe->experts;
    scenario.expert_parallel = 8;
    scenario.sequence_length = 512;
    scenario.tokens_per_gpu = 512;
    scenario.zero = 0;
    StepModel model(scenario);
    const auto parameters = static_cast<double>(scenario.model->dense_parameters(scenario.experts) +
                                                scenario.model->moe_layers() * scenario.experts /
                                                    8 * scenario.model->expert_parameters());
    CHECK(duration_ms(model, balanced(scenario, 0), "optimizer") ==
          Approx(scenario.profile->memory(28 * parameters).time_us * 1e-3));
  }
}

TEST_CASE("an encoder's attention sees every key, a decoder above it attends twice") {
  scenario::Scenario scenario = scenario_of("switch-base-8", 0);
  scenario.mode = scenario::Mode::prefill;
  const routing::ReplicaRouting routing = balanced(scenario, 0);
  const KernelPricer pricer(scenario);
  const auto attention_us = [](const Kernels& kernels) {
    double sum = 0;
    for (const Kernel& kernel : kernels) {
      if (kernel.kernel_class == KernelClass::attention) {
        sum += kernel.count * kernel.estimate.time_us;
      }
    }
    return sum;
  };
  const double causal = attention_us(pricer.attention(Pass::forward, true));
  CHECK(attention_us(pricer.attention(Pass::forward, false)) == Approx(2 * causal));
  // Layer 0 is the encoder's, layer 12 the decoder's: one full block against a causal and a full
  // one.
  StepModel model(scenario);
  const engine::Durations durations = model.durations(&routing, StepModel::no_errors);
  const auto layer_ms = [&](int layer) {
    const auto& operations = model.program().operations;
    for (std::size_t op = 0; op < operations.size(); ++op) {
      if (operations[op].name == "attention" && operations[op].layer == layer) {
        return durations.of(static_cast<int>(op), 0).ms();
      }
    }
    return 0.0;
  };
  CHECK(2 * layer_ms(0) - layer_ms(12) == Approx(causal * 1e-3));
}

TEST_CASE("latent attention's products are as wide as its heads") {
  // Queries and keys of 128 + 64, values of 128: 5/4 of the FLOPs of width 128.
  scenario::Scenario scenario = scenario_of("deepseek-v2-lite", 0);
  const KernelPricer pricer(scenario);
  const Kernels kernels = pricer.attention(Pass::forward, true);
  const auto attention = std::find_if(kernels.begin(), kernels.end(), [](const Kernel& kernel) {
    return kernel.kernel_class == KernelClass::attention;
  });
  REQUIRE(attention != kernels.end());
  // Kernels for it take 0.8 of that (B200, H800).
  CHECK(attention->count == Approx(0.8 * 1.25));
  CHECK(attention->estimate.origin >= profile::Origin::derived);
}

TEST_CASE("ZeRO-3 gathers the embedding and the head too") {
  scenario::Scenario scenario = small_scenario();
  scenario.expert_parallel = 16;  // experts have no replicas
  scenario.experts = 16;
  scenario.zero = 3;
  // Four layers forward and backward, embedding, head.
  CHECK(count(StepModel(scenario), "nccl:all_gather") == 2 * 4 + 2);
}

TEST_CASE("combine's backward pass also reads the rows, for the gradient of their weights") {
  scenario::Scenario scenario = small_scenario();
  const KernelPricer pricer(scenario);
  const double forward = pricer.combine(Pass::forward, 1024).front().estimate.time_us;
  const double backward = pricer.combine(Pass::backward, 1024).front().estimate.time_us;
  const std::int64_t rows = 8 * 1024;
  CHECK(forward == scenario.profile->combine_rows(4096, rows, 4096).time_us);
  CHECK(backward == scenario.profile->combine_rows(4096, 2 * rows, 4096).time_us);
}

TEST_CASE("rows appended to the experts' call are gathered and blended like others") {
  scenario::Scenario scenario = small_scenario();
  const KernelPricer pricer(scenario);
  const Kernels moves = pricer.rectify_moves(Pass::forward, 400);
  REQUIRE(moves.size() == 2);
  scenario.mode = scenario::Mode::prefill;
  scenario.router.rectification = Rectification::gpu;
  scenario.router.ir_compute = routing::IrCompute::grouped;
  StepModel model(scenario);
  const double moved_ms = 2 * (moves[0].estimate.time_us + moves[1].estimate.time_us) * 1e-3;
  CHECK(duration_ms(model, balanced(scenario, 400), "rectify") > moved_ms);
  CHECK(duration_ms(model, balanced(scenario, 0), "rectify") == 0);
}

TEST_CASE("a model of experts alone has no dense counterpart to simulate") {
  scenario::Scenario scenario = scenario_of("olmoe-1b-7b", 0);
  scenario.model_name = "olmoe-1b-7b";
  scenario.router = routing::parse_router("dense", 0);
  scenario.expert_parallel = 1;
  CHECK_THROWS_WITH(check(scenario), ContainsSubstring("no dense FFN"));
}

TEST_CASE("a step too large to simulate is refused with what to change") {
  scenario::Scenario scenario = small_scenario();
  scenario.micro_steps = 10000000;
  CHECK_THROWS_WITH(check(scenario), ContainsSubstring("--global-batch"));
  scenario.mode = scenario::Mode::prefill;
  CHECK_NOTHROW(check(scenario));
}

}  // namespace moesim::step
