// Steps in which GPUs hold different numbers of tokens.
#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <tuple>

#include "sim/engine/dataflow.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "sim/step/exchanges/exchange_traffic.hpp"
#include "sim/step/step_runner.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/scenarios.hpp"

namespace moesim::step {
namespace {

// 16 A100s in two nodes, groups of 8, 8 experts, 4 sequences of 1,024 tokens on the fullest GPU,
// four layers of which two are MoE.
scenario::Scenario scenario_of(const std::string& router, const std::string& scores,
                               scenario::Mode mode = scenario::Mode::train) {
  scenario::Scenario scenario = support::small_prefill();
  scenario.mode = mode;
  scenario.router = routing::parse_router(router, 0, 2);
  scenario.router.capacity_factor = Decimal(2);
  scenario.scores = routing::parse_score_source(scores, "--routing");
  return scenario;
}

scenario::Scenario plain_of(const std::string& router, std::int64_t tokens) {
  scenario::Scenario scenario = scenario_of(router, "balanced");
  scenario.tokens_per_gpu = tokens;
  return scenario;
}

// Names of operations and their durations on a GPU, but for those of the all-reduce that ragged
// sources add.
std::vector<std::pair<std::string, Picoseconds>> prices_on(StepModel& model, int gpu, int errors,
                                                           const routing::ReplicaRouting& routing) {
  const engine::Durations durations = model.durations(&routing, errors);
  std::vector<std::pair<std::string, Picoseconds>> prices;
  for (int op = 0; op < static_cast<int>(model.program().operations.size()); ++op) {
    const std::string& name = model.program().operations[static_cast<std::size_t>(op)].name;
    if (name != "nccl:all_reduce") prices.emplace_back(name, durations.of(op, gpu));
  }
  return prices;
}

std::map<std::string, Picoseconds> sums_on(StepModel& model, int gpu,
                                           const routing::ReplicaRouting& routing) {
  std::map<std::string, Picoseconds> sums;
  for (const auto& [name, time] : prices_on(model, gpu, StepModel::no_errors, routing)) {
    sums[name] += time;
  }
  return sums;
}

Picoseconds time_of(const Kernels& kernels) {
  double us = 0;
  for (const Kernel& kernel : kernels) us += kernel.count * kernel.estimate.time_us;
  return Picoseconds::from_us(us);
}

bool is_one_of(const std::string& name, std::initializer_list<const char*> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

TEST_CASE("each GPU of a ragged step costs what one of as many tokens costs, to the bit") {
  // ragged-source:4 on 8 ranks: 4,096 - 438.86 r tokens, 1,024 on the last.
  for (const char* router : {"top2", "expert-choice", "soft", "scomoe:0.25:0.25", "random"}) {
    const scenario::Scenario ragged = scenario_of(router, "ragged-source:4");
    REQUIRE(ragged.is_ragged());
    REQUIRE(ragged.tokens_of(15) == 1024);
    StepModel model(ragged);
    StepModel most(plain_of(router, 4096));
    StepModel least(plain_of(router, 1024));
    const routing::ReplicaRouting routing = support::equal_rows(ragged, 1024);
    for (const int errors : {StepModel::no_errors, 1}) {
      const auto first = prices_on(model, 8, errors, routing);
      // The pools of ragged sources are announced.
      const std::string name = router;
      if (name.rfind("scomoe", 0) != 0) CHECK(first == prices_on(most, 8, errors, routing));
      std::map<std::string, Picoseconds> expected;
      for (const auto& [operation, time] : prices_on(least, 15, errors, routing)) {
        expected[operation] += time;
      }
      std::map<std::string, Picoseconds> found;
      for (const auto& [operation, time] : prices_on(model, 15, errors, routing)) {
        found[operation] += time;
      }
      int compared = 0;
      for (const auto& [operation, time] : found) {
        if (operation.rfind("nccl", 0) == 0 || operation == "counts_to_host") continue;
        CHECK(expected.at(operation) == time);
        ++compared;
      }
      CHECK(compared >= 11);
    }
  }
}

TEST_CASE("GPUs with fewer tokens hold fewer sequences, the last one cut short") {
  const scenario::Scenario scenario = scenario_of("top2", "ragged-source:4");
  // Rank 1: 3,657 tokens are three sequences of 1,024 and one of 585.
  REQUIRE(scenario.tokens_of(1) == 3657);
  std::map<std::string, std::vector<double>> times;
  for (const Kernel& kernel : KernelPricer(scenario, 3657).attention(Pass::forward, true)) {
    times[kernel.label].push_back(kernel.count * kernel.estimate.time_us);
  }
  const model::Model& model = *scenario.model;
  const auto attention = [&](std::int64_t batch, std::int64_t length) {
    return scenario.profile
        ->attention({batch, length, model.heads, model.kv_heads, model.head_dim}, false)
        .time_us;
  };
  CHECK(times.at("attention") == std::vector<double>{attention(3, 1024), attention(1, 585)});
  CHECK(times.at("attention out")[0] ==
        scenario.profile->gemm(3657, model.hidden, model.hidden).time_us);
  // 1,024 tokens of soft routing are one sequence of the four: a quarter of the products.
  const scenario::Scenario soft = scenario_of("soft", "ragged-source:4");
  const Kernels quarter = KernelPricer(soft, 1024).dispatch(Pass::forward, 1024);
  const Kernels whole = KernelPricer(soft).dispatch(Pass::forward, 1024);
  REQUIRE(quarter.size() == 1);
  CHECK(quarter[0].count == 1);
  CHECK(whole[0].count == 4);
  CHECK(quarter[0].estimate.time_us == whole[0].estimate.time_us);
}

TEST_CASE("an empty rank has nothing to do but its experts, its part of the exchange and Adam") {
  for (const scenario::Dispatch dispatch :
       {scenario::Dispatch::index, scenario::Dispatch::einsum}) {
    scenario::Scenario scenario = scenario_of("top2+ir", "empty-rank");
    scenario.dispatch = dispatch;
    StepModel model(scenario);
    const routing::ReplicaRouting routing = support::equal_rows(scenario, 1024);
    const auto empty = sums_on(model, 7, routing);
    const auto full = sums_on(model, 6, routing);
    // It writes zeros into E C rows, forward; backward into their gradients; in two layers.
    const Picoseconds zeros = time_of(
        {{"", KernelClass::memory,
          scenario.profile->memory(8.0 * 1024 * 2 * static_cast<double>(scenario.model->hidden)), 1,
          0}});
    for (const auto& [name, time] : empty) {
      INFO(name);
      if (is_one_of(name, {"dispatch", "combine_backward"})) {
        CHECK(time == zeros + zeros);
        CHECK(time < full.at(name));
      } else if (is_one_of(name, {"expert_ffn", "expert_ffn_backward", "optimizer"}) ||
                 name.rfind("nccl", 0) == 0) {
        CHECK(time == full.at(name));
        CHECK(time > Picoseconds(0));
      } else {
        CHECK(time == Picoseconds(0));  // no rows to rectify either
        if (name.rfind("rectify", 0) != 0) CHECK(full.at(name) > Picoseconds(0));
      }
    }
  }
}

TEST_CASE("two GPUs, one without tokens, by hand") {
  // One MoE layer above one dense layer; forward only. GPU 1 is at the all-reduce at 0, GPU 0 at
  //   t = embedding + 2 attention + dense FFN + router,
  // it takes r. GPU 1 has written its zeros (z) when GPU 0 has permuted (d > z); the all-to-all of
  // equal blocks takes x from then on, the experts of both e, and x again the way home. GPU 1 has
  // no token to combine; GPU 0 needs c and the head h:
  //   t + r + d + 2 x + e on GPU 1, and c + h more on GPU 0.
  scenario::Scenario scenario = scenario_of("top1", "empty-rank", scenario::Mode::prefill);
  auto small = *scenario.model;
  small.layers = 2;
  scenario.model = std::make_shared<model::Model>(small);
  scenario.gpus = scenario.expert_parallel = scenario.experts = 2;
  REQUIRE(scenario.model->moe_layers() == 1);
  REQUIRE(scenario.tokens_of(1) == 0);
  StepModel model(scenario);
  // C = ceil(2 x 4,096 / 2) of GPU 0, nothing of GPU 1: all blocks have C rows.
  const routing::ReplicaRouting routing = routing::simulate_routing(scenario.routing_job(), 0);
  REQUIRE(routing.layers[0].exchanged_capacity == 4096);
  const engine::Execution execution = StepRunner(model).run(&routing, 0, StepModel::no_errors);

  const KernelPricer full(scenario);
  const auto forward = Pass::forward;
  const auto block = [&](const Kernels& inside) {
    return time_of(full.norm(forward)).us() + time_of(inside).us() +
           time_of(full.residual(forward)).us();
  };
  const double t = time_of(full.embedding(forward)).us() +
                   2 * block(full.attention(forward, true)) + block(full.dense_ffn(forward)) +
                   time_of(full.norm(forward)).us() + time_of(full.router(forward)).us();
  const std::vector<int> both{0, 1};
  const auto exchange = [&](profile::Collective kind, double bytes) {
    return time_of({full.exchange(kind, both, bytes, "")}).us();
  };
  const double r = exchange(profile::Collective::all_reduce, 4);
  const double d = time_of(full.dispatch(forward, 4096)).us();
  const double z = time_of(KernelPricer(scenario, 0).dispatch(forward, 4096)).us();
  const double x = exchange(profile::Collective::all_to_all, full.dispatch_bytes(4096));
  const double e = time_of(full.experts(forward, 4096, 0)).us();
  const double c = time_of(full.combine(forward, 4096)).us() + time_of(full.residual(forward)).us();
  const double h = time_of(full.norm(forward)).us() + time_of(full.head(forward)).us();
  CHECK((0 < z && z < d));
  // About 20 roundings to a picosecond.
  CHECK(execution.end_of(1).us() == Approx(t + r + d + 2 * x + e).margin(2e-5));
  CHECK(execution.end_of(0).us() == Approx(t + r + d + 2 * x + e + c + h).margin(2e-5));
  CHECK(execution.slowest_rank() == 0);
}

TEST_CASE("ragged sources agree on their blocks once a layer, and pools say what they send") {
  const auto counts = [](const std::string& router, const std::string& scores, bool by_group) {
    scenario::Scenario scenario = scenario_of(router, scores, scenario::Mode::prefill);
    if (by_group) scenario.router.capacity_scope = routing::CapacityScope::group;
    const StepModel model(scenario);
    const auto count = [&](const char* name) {
      const auto& operations = model.program().operations;
      return std::count_if(operations.begin(), operations.end(),
                           [&](const engine::Operation& one) { return one.name == name; });
    };
    return std::pair(count("nccl:all_reduce"), count("nccl:all_gather"));
  };
  using Counts = std::pair<std::ptrdiff_t, std::ptrdiff_t>;
  for (const char* router : {"top2", "expert-choice", "soft", "gating-dropout:0.5", "hash"}) {
    CHECK(counts(router, "balanced", false) == Counts(0, 0));
    CHECK(counts(router, "ragged-source:1.0001", false) == Counts(0, 0));  // 4,096 tokens on all
    CHECK(counts(router, "ragged-source:2", false) == Counts(2, 0));
    CHECK(counts(router, "empty-rank", false) == Counts(2, 0));
  }
  CHECK(counts("top2", "balanced", true) == Counts(2, 0));
  CHECK(counts("top2", "empty-rank", true) == Counts(2, 0));
  CHECK(counts("scomoe:0.2:0.2", "balanced", false) == Counts(0, 0));
  CHECK(counts("scomoe:0.2:0.2", "empty-rank", false) == Counts(0, 2));
  CHECK(counts("scomoe:1:0", "empty-rank", false) == Counts(0, 0));  // nothing leaves its GPU
  CHECK(counts("dropless", "empty-rank", false) == Counts(0, 2));
}

TEST_CASE("every row of ragged sources travels there and back, once") {
  for (const char* router : {"dropless", "scomoe:0.2:0.3", "base:greedy"}) {
    for (const char* scores : {"ragged-source:4", "empty-rank"}) {
      const scenario::Scenario scenario = scenario_of(router, scores, scenario::Mode::prefill);
      const StepModel model(scenario);
      const routing::ReplicaRouting routing = routing::simulate_routing(scenario.routing_job(), 0);
      const UnpaddedTraffic traffic(model, routing);
      const auto row_bytes = static_cast<std::int64_t>(model.row_bytes());
      for (int op = 0; op < static_cast<int>(model.program().operations.size()); ++op) {
        if (!traffic.is_uneven(op)) continue;
        const bool home = model.direction(op) == StepModel::Direction::to_tokens;
        const auto& rows = routing.layers[static_cast<std::size_t>(model.moe_layer(op))].kept_rows;
        ByteMatrix bytes(8);
        traffic.fill(op, 1, bytes);
        for (int rank = 0; rank < 8; ++rank) {
          std::int64_t own = 0;  // that rank's tokens: sent on the way there, received back home
          for (int other = 0; other < 8; ++other) {
            own += home ? bytes.at(other, rank) : bytes.at(rank, other);
          }
          const auto row = rows.begin() + (8 + rank) * 8;
          CHECK(own == row_bytes * std::accumulate(row, row + 8, std::int64_t{0}));
          if (scenario.tokens_of(rank) == 0) CHECK(own == 0);
          if (std::string(router) == "dropless") {
            CHECK(own == 2 * row_bytes * scenario.tokens_of(rank));
          }
        }
      }
    }
  }
}

TEST_CASE("GPUs with different numbers of tokens are not folded onto each other") {
  const std::map<std::string, int> columns{{"ragged-source:4", 8}, {"empty-rank", 2}};
  for (const auto& [scores, expected] : columns) {
    const scenario::Scenario scenario = scenario_of("top2", scores);
    StepModel model(scenario);
    const routing::ReplicaRouting routing = support::equal_rows(scenario, 1024);
    const engine::Durations durations = model.durations(&routing, StepModel::no_errors);
    const engine::Execution all =
        engine::run_alone(model.program(), durations, {}, engine::Folding::off);
    const engine::Execution folded =
        engine::run_alone(model.program(), durations, {}, engine::Folding::on);
    CHECK(all.columns == 16);
    CHECK(folded.columns == expected);
    bool same = true;
    for (int op = 0; op < static_cast<int>(model.program().operations.size()); ++op) {
      for (int gpu = 0; gpu < 16; ++gpu) {
        same = same && all.finish[all.at(op, gpu)] == folded.finish[folded.at(op, gpu)];
      }
    }
    CHECK(same);
  }
}

TEST_CASE("in a layer without exchange a GPU pads its own experts to its own capacity") {
  const scenario::Scenario scenario = scenario_of("gating-dropout:0.5", "ragged-source:4");
  // Layers of ten replicas that skip: C = ceil(2 x 4,096 / 1) of the fullest.
  int skipped = 0;
  for (int replica = 0; replica < 10; ++replica) {
    for (const auto& layer : routing::simulate_routing(scenario.routing_job(), replica).layers) {
      if (layer.exchanged) continue;
      ++skipped;
      CHECK(layer.exchanged_capacity == scenario.router.own_capacity(4096, 1));
    }
  }
  CHECK(skipped > 0);
  routing::ReplicaRouting routing = support::equal_rows(scenario, 1024);
  routing::ReplicaRouting fewer = routing;
  for (std::size_t layer = 0; layer < routing.layers.size(); ++layer) {
    routing.layers[layer].exchanged = fewer.layers[layer].exchanged = false;
    routing.layers[layer].exchanged_capacity = 8192;
    fewer.layers[layer].exchanged_capacity = 2048;  // of 1,024 tokens
  }
  StepModel model(scenario);
  StepModel least(plain_of("gating-dropout:0.5", 1024));
  const auto found = sums_on(model, 7, routing);
  const auto expected = sums_on(least, 7, fewer);
  for (const char* name : {"dispatch", "expert_ffn", "combine", "expert_ffn_backward"}) {
    CHECK(found.at(name) == expected.at(name));
    CHECK(found.at(name) < sums_on(model, 0, routing).at(name));
  }
}

TEST_CASE("a ragged step says what it assumes, a plain one does not") {
  const auto provenance = [](const std::string& router, const std::string& scores) {
    return StepModel(scenario_of(router, scores)).provenance();
  };
  const std::string padded = provenance("top2", "ragged-source:4");
  CHECK(padded.find("fewer tokens hold fewer sequences") != std::string::npos);
  CHECK(padded.find("padded to the group's largest") != std::string::npos);
  CHECK(provenance("dropless", "empty-rank").find("fewer sequences") != std::string::npos);
  CHECK(provenance("dropless", "empty-rank").find("largest") == std::string::npos);
  CHECK(provenance("top2", "balanced").find("assumed:") == std::string::npos);
}

}  // namespace moesim::step
