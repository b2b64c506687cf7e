// What a step costs under each kind of router, on routings made by hand.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "sim/base/error.hpp"
#include "sim/network/exchange/port_clock.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/step/exchanges/exchange_traffic.hpp"
#include "sim/step/memory.hpp"
#include "sim/step/step_runner.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/scenarios.hpp"

namespace moesim::step {
namespace {

// 16 A100s in two nodes, groups of 8, 8 experts, 4,096 tokens per GPU; two MoE layers.
scenario::Scenario scenario_of(const std::string& router) {
  scenario::Scenario scenario = support::small_prefill();
  scenario.router = routing::parse_router(router, 0, 2);
  return scenario;
}

using support::equal_rows;

engine::Execution execution_of(StepModel& model, const routing::ReplicaRouting& routing) {
  return StepRunner(model).run(&routing, 0, StepModel::no_errors);
}

double step_us(const scenario::Scenario& scenario, const routing::ReplicaRouting& routing) {
  StepModel model(scenario);
  const engine::Execution execution = execution_of(model, routing);
  return execution.end_of(execution.slowest_rank()).us();
}

double us_of(const Kernels& kernels) {
  double sum = 0;
  for (const Kernel& kernel : kernels) sum += kernel.count * kernel.estimate.time_us;
  return sum;
}

int count_of(const StepModel& model, const std::string& name) {
  const auto& operations = model.program().operations;
  return static_cast<int>(
      std::count_if(operations.begin(), operations.end(),
                    [&](const engine::Operation& operation) { return operation.name == name; }));
}

bool has_label(const Kernels& kernels, const std::string& label) {
  return std::any_of(kernels.begin(), kernels.end(),
                     [&](const Kernel& kernel) { return kernel.label == label; });
}

std::vector<int> one_group() {
  std::vector<int> members(8);
  std::iota(members.begin(), members.end(), 0);
  return members;
}

}  // namespace

TEST_CASE("an equal exchange takes the curve's time on the links, whatever its size") {
  for (const char* name : {"dropless", "top1"}) {
    const scenario::Scenario scenario = scenario_of(name);
    const StepModel model(scenario);
    constexpr double reference = 1 << 20;
    ExchangeLinks links(model, reference);
    const network::Topology topology = links.topology();
    network::PortClock clock(topology);
    // From 64 KiB to 64 MiB a pair; without adjust() the last would be off by the bend of the
    // curve.
    for (std::int64_t block = 1 << 16; block <= 1 << 26; block *= 4) {
      ByteMatrix bytes(8);
      for (int source = 0; source < 8; ++source) std::fill_n(bytes.row(source), 8, block);
      links.adjust(8, bytes);
      const std::vector<Picoseconds> start(8, Picoseconds(0));
      std::vector<Picoseconds> finish(8);
      const std::vector<int> members = one_group();
      clock.finish(members, bytes, start, finish);
      const double curve_us =
          scenario.profile
              ->collective(profile::Collective::all_to_all, 8, 8.0 * static_cast<double>(block))
              .time_us;
      // A byte of the block and a picosecond per port are lost to rounding.
      CHECK(finish[3].us() == Approx(curve_us).epsilon(2e-5));
    }
  }
}

TEST_CASE("a balanced dropless step is the padded one at CF = k and the counts") {
  // k S / E = 1,024 rows from each GPU to each expert: the capacity at CF = k.
  const scenario::Scenario padded = scenario_of("top2");
  REQUIRE(padded.router.capacity(padded.tokens_per_gpu, padded.experts) == 1024);
  for (const scenario::Network network : {scenario::Network::fast, scenario::Network::flows}) {
    scenario::Scenario dropless = scenario_of("dropless");
    dropless.network = network;
    const KernelPricer pricer(dropless);
    const std::vector<int> members = one_group();
    const double counts_us =
        pricer.exchange(profile::Collective::all_gather, members, counts_bytes(dropless), "counts")
            .estimate.time_us +
        host_read_us;
    const double difference_us =
        step_us(dropless, equal_rows(dropless, 1024)) - step_us(padded, equal_rows(padded, 1024));
    // Two MoE layers; four all-to-alls whose bytes are rounded to one of 16 MB.
    CHECK(difference_us == Approx(2 * counts_us).margin(0.01));
  }
}

TEST_CASE("rows on one expert slow a dropless step, and not below the busiest GPU's work") {
  const scenario::Scenario scenario = scenario_of("dropless");
  double before = step_us(scenario, equal_rows(scenario, 1024));
  for (const std::int32_t moved : {64, 256, 1000}) {
    routing::ReplicaRouting routing = equal_rows(scenario, 1024);
    for (routing::LayerRouting& layer : routing.layers) {
      for (std::size_t gpu = 0; gpu < 8; ++gpu) {  // the first group only
        for (std::size_t expert = 1; expert < 8; ++expert)
          layer.kept_rows[gpu * 8 + expert] -= moved;
        layer.kept_rows[gpu * 8] += 7 * moved;
      }
    }
    StepModel model(scenario);
    const engine::Execution execution = execution_of(model, routing);
    const engine::Durations durations = model.durations(&routing, StepModel::no_errors);
    Picoseconds work;
    for (std::size_t op = 0; op < durations.uniform.size(); ++op) {
      work += durations.of(static_cast<int>(op), 0);
    }
    const double step = execution.end_of(execution.slowest_rank()).us();
    CHECK(step > before);
    CHECK(step >= work.us());
    // The other group has nothing to do with it.
    CHECK(execution.end_of(8) < execution.end_of(0));
    before = step;
  }
}

TEST_CASE("gating dropout at 0 is top-k; a layer that skips saves its two all-to-alls") {
  const scenario::Scenario top = scenario_of("top2");
  const scenario::Scenario never = scenario_of("gating-dropout:0");
  const routing::ReplicaRouting all = equal_rows(top, 1024);
  StepModel top_model(top);
  StepModel never_model(never);
  CHECK(top_model.durations(&all, 0).uniform == never_model.durations(&all, 0).uniform);
  CHECK(step_us(top, all) == step_us(never, all));

  const scenario::Scenario half = scenario_of("gating-dropout:0.5");
  routing::ReplicaRouting one = all;
  one.layers[1].exchanged = false;
  one.layers[1].exchanged_capacity = 8192;  // ceil(CF S / (E / P)): all 8 x 1,024 slots on its own
  const double all_to_all_us =
      us_of({KernelPricer(half).exchange(profile::Collective::all_to_all, one_group(),
                                         KernelPricer(half).dispatch_bytes(1024), "all-to-all")});
  CHECK(step_us(half, all) - step_us(half, one) == Approx(2 * all_to_all_us).epsilon(1e-6));
  // So does what comes before an exchange: the group's largest block, or the counts.
  const auto announced_us = [](const scenario::Scenario& scenario, profile::Collective kind,
                               double bytes) {
    return us_of({KernelPricer(scenario).exchange(kind, one_group(), bytes, "counts")});
  };
  scenario::Scenario group = half;
  group.router.capacity_scope = routing::CapacityScope::group;
  CHECK(step_us(group, all) - step_us(group, one) ==
        Approx(2 * all_to_all_us + announced_us(group, profile::Collective::all_reduce, 4.0 * 8))
            .epsilon(1e-6));
  scenario::Scenario unpadded = half;
  unpadded.router.padding = routing::Padding::none;
  routing::ReplicaRouting own = one;
  for (std::size_t gpu = 0; gpu < 16; ++gpu) {
    for (std::size_t expert = 0; expert < 8; ++expert) {
      own.layers[1].kept_rows[gpu * 8 + expert] = expert == gpu % 8 ? 8192 : 0;
    }
  }
  const double counts_us =
      announced_us(unpadded, profile::Collective::all_gather, counts_bytes(unpadded)) +
      host_read_us;
  // Bytes are rounded to one of 16 MB.
  CHECK(step_us(unpadded, all) - step_us(unpadded, own) ==
        Approx(2 * all_to_all_us + counts_us).margin(0.01));
  // The same by exact flows, which see an empty matrix.
  scenario::Scenario flows = half;
  flows.network = scenario::Network::flows;
  CHECK(step_us(flows, one) == Approx(step_us(half, one)).epsilon(1e-6));
}

TEST_CASE("nobody waits where nothing is exchanged, whatever announces it and on any network") {
  // A forward pass without exchanges: every GPU by itself, the slow one twice as long.
  const auto check_apart = [](scenario::Scenario scenario, const routing::ReplicaRouting& routing) {
    scenario.conditions.slow_gpus = {{2, 2.0}};
    StepModel model(scenario);
    const engine::Execution execution = execution_of(model, routing);
    CHECK(execution.end_of(2).us() == Approx(2 * execution.end_of(3).us()).epsilon(1e-9));
  };
  const scenario::Scenario half = scenario_of("gating-dropout:0.5+ir");
  routing::ReplicaRouting own = equal_rows(half, 1024);
  for (routing::LayerRouting& layer : own.layers) {
    layer.exchanged = false;
    layer.exchanged_capacity = 8192;
    for (std::size_t gpu = 0; gpu < 16; ++gpu) {
      for (std::size_t expert = 0; expert < 8; ++expert) {
        layer.kept_rows[gpu * 8 + expert] = expert == gpu % 8 ? 8192 : 0;
      }
    }
  }
  check_apart(half, own);
  scenario::Scenario by_group = half;  // an all-reduce before each exchange
  by_group.router.capacity_scope = routing::CapacityScope::group;
  check_apart(by_group, own);
  scenario::Scenario unpadded = half;  // an all-gather and the host
  unpadded.router.padding = routing::Padding::none;
  check_apart(unpadded, own);
  scenario::Scenario flows = by_group;
  flows.network = scenario::Network::flows;
  check_apart(flows, own);
  scenario::Scenario node = scenario_of("gating-dropout:0.5+ir@node");  // no rows to rectify
  check_apart(node, own);
  scenario::Scenario slowed = by_group;
  slowed.conditions.slowdowns = {1.1, 1.2};
  check_apart(slowed, own);
  for (const scenario::Network network : {scenario::Network::fast, scenario::Network::flows}) {
    scenario::Scenario pools = scenario_of("scomoe:1:0");
    pools.network = network;
    check_apart(pools, own);
  }
}

TEST_CASE("a straggler slows the others down from the first layer that exchanges again") {
  scenario::Scenario scenario = scenario_of("gating-dropout:0.5");
  scenario.router.capacity_scope = routing::CapacityScope::group;
  routing::ReplicaRouting routing = equal_rows(scenario, 1024);
  routing.layers[0].exchanged = false;
  routing.layers[0].exchanged_capacity = 8192;
  StepModel even(scenario);
  scenario.conditions.slow_gpus = {{2, 2.0}};
  StepModel uneven(scenario);
  const engine::Execution before = execution_of(even, routing);
  const engine::Execution after = execution_of(uneven, routing);
  bool waits = false;
  int compared = 0;
  const auto& operations = even.program().operations;
  for (int op = 0; op < static_cast<int>(operations.size()); ++op) {
    // GPU 3 shares its group with the straggler.
    const bool same = after.finish[after.at(op, 3)] == before.finish[before.at(op, 3)];
    // The first MoE layer is layer 1, the second layer 3; its first exchange is the all-reduce.
    waits = waits || (operations[static_cast<std::size_t>(op)].layer == 3 &&
                      operations[static_cast<std::size_t>(op)].name == "nccl:all_reduce");
    CHECK(same == !waits);
    ++compared;
  }
  CHECK(waits);
  CHECK(compared > 20);
}

TEST_CASE("scomoe without local shares sends what top-1 sends, in as much time") {
  scenario::Scenario pools = scenario_of("top1");
  pools.router = routing::parse_router("scomoe:0:0", 1);
  scenario::Scenario top = scenario_of("top1");
  const std::int64_t capacity = top.router.capacity(top.tokens_per_gpu, top.experts);
  REQUIRE(capacity == 512);
  const routing::ReplicaRouting routing = equal_rows(top, 512);
  StepModel model(pools);
  const UnpaddedTraffic traffic(model, routing);
  for (int op = 0; op < static_cast<int>(model.program().operations.size()); ++op) {
    if (!traffic.is_uneven(op)) continue;
    ByteMatrix bytes(8);
    traffic.fill(op, 1, bytes);
    for (int source = 0; source < 8; ++source) {
      for (int owner = 0; owner < 8; ++owner) {
        CHECK(static_cast<double>(bytes.at(source, owner)) ==
              KernelPricer(top).dispatch_bytes(capacity) / 8);
      }
    }
  }
  CHECK(count_of(model, "nccl:all_gather") == 0);  // blocks are known
  CHECK(step_us(pools, routing) == Approx(step_us(top, routing)).margin(0.01));
}

TEST_CASE("soft routing mixes and unmixes each sequence in products of S x (E p) x h") {
  const scenario::Scenario scenario = scenario_of("soft");
  // C = S / E = 512 slots per expert and GPU; 4 sequences of 1,024 tokens: p = 128, E p = 1,024.
  CHECK(scenario.mixed_sequences() == 4);
  CHECK(scenario.mixed_slots() == 1024);
  const KernelPricer pricer(scenario);
  const std::int64_t hidden = scenario.model->hidden;
  const profile::Profile& profile = *scenario.profile;
  // 4 products of 1,024 x 1,024 x h: 2 S (E p) h FLOPs.
  const Kernels dispatch = pricer.dispatch(Pass::forward, 512);
  REQUIRE(dispatch.size() == 1);
  CHECK(dispatch[0].count == 4);
  CHECK(dispatch[0].estimate.time_us == profile.gemm(1024, hidden, 1024).time_us);
  CHECK(us_of(pricer.combine(Pass::forward, 512)) == us_of(dispatch));
  CHECK(pricer.dispatch(Pass::backward, 512).size() == 2);
  CHECK(has_label(pricer.router(Pass::forward), "slot logits"));
  CHECK_FALSE(has_label(pricer.router(Pass::forward), "gate GEMM"));
  // The experts see P C rows each, as of top-1 at CF 1; logits are h x (E p) parameters a layer.
  CHECK(us_of(pricer.experts(Pass::forward, 512, 0)) ==
        us_of(KernelPricer(scenario_of("top1")).experts(Pass::forward, 512, 0)));
  CHECK(scenario.gate_outputs() == 1024);
  // Two bf16 weights per token and slot.
  CHECK(memory_footprint(scenario, 0, {}).einsum_masks == Bytes(2 * 2 * 4096 * 1024));
}

TEST_CASE("base shuffles tokens over the group and home in training, and none in inference") {
  scenario::Scenario scenario = scenario_of("base");
  const int layers = scenario.model->moe_layers();
  StepModel model(scenario);
  CHECK(count_of(model, "nccl:all_to_all") == 4 * layers);
  CHECK(count_of(model, "shuffle") == layers);
  // S rows of h in bf16 leave each GPU: as much as a top-1 dispatch at CF 1.
  const KernelPricer pricer(scenario);
  const double shuffle_us =
      us_of({pricer.exchange(profile::Collective::all_to_all, one_group(),
                             2.0 * 4096 * static_cast<double>(scenario.model->hidden), "shuffle")});
  const routing::ReplicaRouting routing = equal_rows(scenario, 512);
  const engine::Durations durations = model.durations(&routing, StepModel::no_errors);
  int seen = 0;
  for (std::size_t op = 0; op < durations.uniform.size(); ++op) {
    if (model.program().operations[op].name != "nccl:all_to_all") continue;
    CHECK(durations.uniform[op] == Picoseconds::from_us(shuffle_us));
    ++seen;
  }
  CHECK(seen == 4 * layers);

  scenario.mode = scenario::Mode::train;
  CHECK(count_of(StepModel(scenario), "nccl:all_to_all") == 8 * layers);
  const StepModel greedy(scenario_of("base:greedy"));
  CHECK(count_of(greedy, "nccl:all_to_all") == 2 * layers);
  CHECK(count_of(greedy, "shuffle") == 0);
}

TEST_CASE("gates by kind: none for hash and random, an auction for base, columns for experts") {
  const auto gate = [](const char* router, Pass pass) {
    return KernelPricer(scenario_of(router)).router(pass);
  };
  for (const char* router : {"hash", "random"}) {
    CHECK_FALSE(has_label(gate(router, Pass::forward), "gate GEMM"));
    CHECK(gate(router, Pass::backward).empty());
    CHECK(us_of(gate(router, Pass::forward)) < us_of(gate("top1", Pass::forward)));
    CHECK(scenario_of(router).gate_outputs() == 0);
  }
  CHECK(has_label(gate("base", Pass::forward), "auction select"));
  CHECK_FALSE(has_label(gate("base:greedy", Pass::forward), "auction select"));
  // The host reads two results in each of 13 rounds of 20 us.
  CHECK(us_of(gate("base", Pass::forward)) > us_of(gate("base:greedy", Pass::forward)) + 520);
  CHECK(has_label(gate("expert-choice", Pass::forward), "column sort"));
  CHECK(us_of(gate("dropless", Pass::forward)) == us_of(gate("top2", Pass::forward)));
  CHECK(us_of(gate("group-limited:4:2", Pass::forward)) > us_of(gate("top2", Pass::forward)));
  CHECK(us_of(gate("bias-balanced", Pass::forward)) > us_of(gate("top2", Pass::forward)));
  // What limits groups costs the same whatever scores them.
  const auto more = [&](const char* router, const char* than) {
    return us_of(gate(router, Pass::forward)) - us_of(gate(than, Pass::forward));
  };
  CHECK(more("bias-balanced+groups:4:2", "bias-balanced") ==
        Approx(more("group-limited:4:2", "top2")));
}

TEST_CASE("what the host waits for is there once per layer and pass, and named in provenance") {
  scenario::Scenario scenario = scenario_of("dropless");
  scenario.mode = scenario::Mode::train;
  scenario.checkpointing = scenario::Checkpointing::full;
  StepModel model(scenario);
  const int layers = scenario.model->moe_layers();
  CHECK(count_of(model, "counts_to_host") == 2 * layers);  // the forward pass and its repetition
  CHECK(model.provenance().find("20 us for the host to read counts") != std::string::npos);
  CHECK(StepModel(scenario_of("top2")).provenance().find("host") == std::string::npos);
  CHECK(count_of(StepModel(scenario_of("group-limited:4:2")), "counts_to_host") == layers);
  CHECK(count_of(StepModel(scenario_of("expert-choice")), "counts_to_host") == 0);
  scenario::Scenario unpadded = scenario_of("top2");
  unpadded.router.padding = routing::Padding::none;
  CHECK(count_of(StepModel(unpadded), "counts_to_host") == layers);
}

TEST_CASE("the largest block of a group is asked for where blocks are padded to it") {
  const auto asked = [](const char* router) {
    scenario::Scenario scenario = scenario_of(router);
    scenario.router.capacity_scope = routing::CapacityScope::group;
    scenario.router.padding =
        std::string(router) != "top1" ? routing::Padding::capacity : routing::Padding::none;
    return count_of(StepModel(scenario), "nccl:all_reduce");
  };
  const int layers = scenario_of("top2").model->moe_layers();
  CHECK(asked("top2") == layers);
  CHECK(asked("expert-choice") == layers);
  CHECK(asked("top1") == 0);  // without padding the all-gather of counts says it all
  for (const char* router : {"dropless", "base", "base:greedy", "bias-balanced"}) {
    CHECK(asked(router) == 0);  // no capacity, so no scope of it
  }
}

TEST_CASE("memory without padding is that of the busiest GPU") {
  const scenario::Scenario padded = scenario_of("top2");
  const scenario::Scenario dropless = scenario_of("dropless");
  const auto total = [&](const routing::ReplicaRouting& routing) {
    RowPeak peak(dropless);
    peak.take(routing);
    return memory_footprint(dropless, 0, peak.rows()).total();
  };
  routing::ReplicaRouting routing = equal_rows(dropless, 1024);
  CHECK(total(routing) == memory_footprint(padded, 0, {}).total());
  // GPU 3 of the second group receives 8 x 1,000 more in one of the two layers.
  for (std::size_t gpu = 8; gpu < 16; ++gpu) routing.layers[1].kept_rows[gpu * 8 + 3] += 1000;
  RowPeak peak(dropless);
  peak.take(routing);
  CHECK(peak.rows().most == 8 * 1024 + 8000);
  CHECK(peak.rows().mean == 8 * 1024 + 4000);
  CHECK(peak.rows().sent == 8 * 1024 + 1000);
  CHECK(peak.busiest_of_layer() == 8 * 1024 + 4000);
  // 10,000 more for GPU 5 in the other layer: of each layer's busiest (8,000 and 10,000) the mean.
  routing.layers[0].kept_rows[5] += 10000;
  RowPeak other(dropless);
  other.take(routing);
  CHECK(other.busiest_of_layer() == 8 * 1024 + 9000);
  routing.layers[0].kept_rows[5] -= 10000;
  // Forward, the most of one layer: inputs, outputs (2 x 2 h bytes) and inner activations (3 x 2 f)
  // of 8,000 rows, and 9,000 rows of buffers.
  const model::Model& model = *dropless.model;
  const std::int64_t row = 4 * model.hidden + 6 * model.moe->expert_ffn;
  CHECK(total(routing) ==
        memory_footprint(padded, 0, {}).total() + Bytes(8000 * row + 9000 * 2 * model.hidden));
}

TEST_CASE("memory under group scope is that of the largest block that a group keeps") {
  scenario::Scenario scenario = scenario_of("top2");
  scenario.router.capacity_scope = routing::CapacityScope::group;
  routing::ReplicaRouting routing = equal_rows(scenario, 1024);
  RowPeak peak(scenario);
  routing.layers[1].exchanged_capacity = 1400;
  peak.take(routing);
  CHECK(peak.rows().block == 1400);
  // As much as of a source's own C = 1,400: CF = 1,400 x 8 / 4,096.
  scenario::Scenario larger = scenario_of("top2");
  larger.router.capacity_factor = Decimal::parse("2.734375", "");
  REQUIRE(larger.router.capacity(larger.tokens_per_gpu, larger.experts) == 1400);
  CHECK(memory_footprint(scenario, 0, peak.rows()).total() ==
        memory_footprint(larger, 0, {}).total());
  CHECK(memory_footprint(scenario, 0, peak.rows()).total() >
        memory_footprint(scenario, 0, {}).total());
  // Under source scope every block is C, whatever the routing.
  RowPeak source(larger);
  source.take(routing);
  CHECK(source.rows().block == 0);
}

TEST_CASE("what needs equal blocks is refused where there are none, with a way out") {
  const auto reason = [](const scenario::Scenario& scenario) {
    try {
      check(scenario);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  for (const char* router : {"dropless", "scomoe:0.2:0.2", "soft", "base", "bias-balanced"}) {
    scenario::Scenario scenario = scenario_of(router);
    CHECK(reason(scenario).empty());
    scenario.dispatch = scenario::Dispatch::einsum;
    CHECK(reason(scenario).find("use --dispatch index") != std::string::npos);
  }
  for (const char* router : {"expert-choice", "gating-dropout:0.2", "hash", "random"}) {
    scenario::Scenario scenario = scenario_of(router);
    scenario.dispatch = scenario::Dispatch::einsum;
    CHECK(reason(scenario).empty());
  }
  scenario::Scenario slowed = scenario_of("dropless");
  slowed.conditions.slowdowns = {1.1, 1.2};
  CHECK(reason(slowed).find("--overlap-slowdown") == 0);
  scenario::Scenario unpadded = scenario_of("top2+ir");
  unpadded.router.ir_compute = routing::IrCompute::grouped;
  CHECK(reason(unpadded).empty());
  unpadded.router.padding = routing::Padding::none;
  CHECK(reason(unpadded).find("use separate or overlap") != std::string::npos);
}

TEST_CASE("uneven blocks take flows where those are affordable") {
  scenario::Scenario scenario = scenario_of("dropless");
  const engine::Partition groups = engine::blocks(16, 8);
  const NetworkChoice few = choose_network(scenario, groups, 8);
  CHECK(few.used == scenario::Network::flows);
  CHECK(few.reason.find("blocks of different sizes") != std::string::npos);
  const NetworkChoice many = choose_network(scenario, groups, 1000);  // 16 x 7 x 1,000 messages
  CHECK(many.used == scenario::Network::fast);
  CHECK_FALSE(many.certified);
  scenario.network = scenario::Network::fast;
  CHECK_FALSE(choose_network(scenario, groups, 8).certified);
}

}  // namespace moesim::step
