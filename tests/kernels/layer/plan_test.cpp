#include "kernels/layer/plan.hpp"

#include <map>
#include <set>

#include "kernels/layer/run.hpp"
#include "sim/base/error.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/step/kernels/layer_stages.hpp"
#include "tests/support/catch.hpp"

using namespace moesim::kernels;
using namespace moesim::kernels::layer;
namespace step = moesim::step;
using moesim::Decimal;
using moesim::UsageError;

namespace {

LayerProblem make(const std::string& router, Dispatch dispatch, int ranks) {
  LayerProblem problem;
  problem.router.config = ::moesim::routing::parse_router(router, 0);
  problem.router.config.capacity_factor = Decimal::parse("1", "factor");
  problem.router.tokens = 64;
  problem.router.experts = 8;
  problem.router.ranks = ranks;
  problem.hidden = 32;
  problem.ffn = 48;
  problem.dispatch = dispatch;
  return problem;
}

// Writes down what it is asked to do.
class Recorder : public LayerBackend {
 public:
  std::vector<std::string> calls;
  std::vector<BlockExchange> exchanges;
  std::vector<std::string> open;  // stages begun and not ended
  std::vector<std::int32_t> ir_begin;
  double flops = 0;

  void begin(const Stage& stage) override { open.emplace_back(stage.name); }
  void end(const Stage& stage) override {
    REQUIRE(open.back() == stage.name);
    open.pop_back();
  }
  void gate(const routing::GateArguments&) override { calls.emplace_back("gate"); }
  void assign(const routing::AssignArguments&) override { calls.emplace_back("assign"); }
  void weigh(const routing::WeighArguments&) override { calls.emplace_back("weigh"); }
  void collect(const routing::CollectArguments&) override { calls.emplace_back("collect"); }
  void router_backward(const routing::BackwardArguments&) override {
    calls.emplace_back("router backward");
  }
  void permute(const exchange::DispatchArguments&) override { calls.emplace_back("permute"); }
  void combine(const exchange::CombineArguments& in) override {
    calls.emplace_back(in.residual != nullptr ? "combine onto" : "combine");
  }
  void combine_backward(const exchange::CombineBackwardArguments&) override {
    calls.emplace_back("combine backward");
  }
  void one_hot(const exchange::OneHotArguments& in) override {
    calls.emplace_back(in.weight != nullptr ? "weighted mask" : "mask");
  }
  void read_one_hot(const exchange::MaskGradientArguments&) override {
    calls.emplace_back("read mask");
  }
  void gemm(const Gemm& gemm, const void*, const void*, void*) override {
    flops += gemm.flops();
    calls.emplace_back("gemm");
  }
  void exchange(const BlockExchange& in) override {
    exchanges.push_back(in);
    calls.emplace_back(in.to_experts ? "send" : "send back");
  }
  void narrow(const float*, void*, std::int64_t) override { calls.emplace_back("narrow"); }
  void copy(void*, const void*, std::size_t) override { calls.emplace_back("copy"); }
  std::vector<std::int32_t> read_counts(const std::int32_t*, int count) override {
    REQUIRE(static_cast<std::size_t>(count) == ir_begin.size());
    calls.emplace_back("wait");
    return ir_begin;
  }
  void multiply(const experts::ExpertGemm& call, const experts::FfnTensors&) override {
    flops += call.flops();
    calls.emplace_back(call.name);
  }
  void activate(const experts::SwigluArguments&) override { calls.emplace_back("activate"); }
  void activate_backward(const experts::SwigluBackwardArguments&) override {
    calls.emplace_back("activate backward");
  }
  void clear(void*, std::size_t) override { calls.emplace_back("clear"); }
};

LayerRun run_of(const LayerProblem& problem) {
  const LayerPlan plan = plan_layer(problem);
  // Addresses that are never read.
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return {plan, carve(reinterpret_cast<void*>(std::uintptr_t{1} << 20), plan)};
}

using Calls = std::vector<std::string>;

}  // namespace

TEST_CASE("a layer with index dispatch does these things in this order") {
  LayerRun run = run_of(make("top2+ir", Dispatch::index, 4));
  Recorder forward, backward;
  forward.ir_begin = {0, 3, 3};
  run.forward(forward);
  CHECK(forward.calls == Calls{"clear", "gate", "assign", "weigh", "collect", "permute", "send",
                               "up", "activate", "down", "send back", "wait", "up", "activate",
                               "down", "combine"});
  CHECK(run.ir_rows() == 3);
  run.backward(backward);
  CHECK(backward.calls == Calls{"combine backward", "send", "down by input", "down by weight",
                                "activate backward", "up by input", "up by weight", "send back",
                                "down by input", "down by weight", "activate backward",
                                "up by input", "up by weight", "combine", "router backward",
                                "narrow", "gemm", "gemm"});
  CHECK(forward.open.empty());
  CHECK(backward.open.empty());
}

TEST_CASE("a layer with einsum dispatch multiplies by masks instead, alone without exchanges") {
  LayerProblem problem = make("top2+ir", Dispatch::einsum, 1);
  problem.residual = true;
  LayerRun run = run_of(problem);
  Recorder forward, backward;
  forward.ir_begin = {0, 0, 0, 1, 1, 1, 1, 1, 1};
  run.forward(forward);
  CHECK(forward.calls == Calls{"clear", "gate", "assign", "weigh", "collect", "mask", "gemm",
                               "permute", "up", "activate", "down", "wait", "up", "activate",
                               "down", "weighted mask", "copy", "gemm", "combine onto"});
  run.backward(backward);
  CHECK(backward.calls == Calls{"gemm",
                                "gemm",
                                "read mask",
                                "combine backward",
                                "down by input",
                                "down by weight",
                                "activate backward",
                                "up by input",
                                "up by weight",
                                "down by input",
                                "down by weight",
                                "activate backward",
                                "up by input",
                                "up by weight",
                                "copy",
                                "gemm",
                                "combine onto",
                                "router backward",
                                "narrow",
                                "gemm",
                                "gemm"});
}

TEST_CASE("only layers with IR wait for the host, and no IR row is no product") {
  for (const Dispatch dispatch : {Dispatch::index, Dispatch::einsum}) {
    for (const char* router : {"top1", "top2+fr", "top1+ir"}) {
      const LayerPlan plan = plan_layer(make(router, dispatch, 2));
      bool waits = false;
      for (const Stage& stage : plan.forward) waits = waits || stage.waits;
      for (const Stage& stage : plan.backward) CHECK_FALSE(stage.waits);
      CHECK(waits == plan.problem.rectified());
    }
  }
  LayerRun run = run_of(make("top1+ir", Dispatch::index, 1));
  Recorder recorder;
  recorder.ir_begin.assign(9, 0);
  run.forward(recorder);
  CHECK(run.ir_rows() == 0);
  CHECK(std::count(recorder.calls.begin(), recorder.calls.end(), "up") == 1);
}

TEST_CASE("exchanges send equal blocks, by rank on one side and by expert on the other") {
  // C = 8: 8 rows of 32 bf16 are 512 bytes a block, 2 blocks for each of 4 ranks.
  LayerRun run = run_of(make("top2", Dispatch::index, 4));
  Recorder recorder;
  run.forward(recorder);
  run.backward(recorder);
  REQUIRE(recorder.exchanges.size() == 4);
  for (const BlockExchange& exchange : recorder.exchanges) {
    CHECK(exchange.block_bytes == 512);
    CHECK(exchange.ranks == 4);
    CHECK(exchange.blocks == 2);
    std::set<std::size_t> sent, received;
    for (int rank = 0; rank < 4; ++rank) {
      for (int block = 0; block < 2; ++block) {
        sent.insert(exchange.sent_at(rank, block));
        received.insert(exchange.received_at(rank, block));
      }
    }
    CHECK(sent.size() == 8);
    CHECK(*sent.rbegin() == 7 * 512);
    CHECK(received == sent);
  }
  const BlockExchange& there = recorder.exchanges[0];
  CHECK(there.sent_at(3, 1) == 7 * 512);      // expert 7 of the rows by expert
  CHECK(there.received_at(3, 1) == 7 * 512);  // the last rank's rows of the second local expert
  CHECK(there.sent_at(1, 0) == 2 * 512);
  CHECK(there.received_at(1, 0) == 1 * 512);
  CHECK(recorder.exchanges[1].sent_at(1, 0) == there.received_at(1, 0));
  // An all-to-all's per-rank buffer, as the simulator prices it: E C h elements of bf16.
  for (const Stage& stage : run.plan().forward) {
    if (stage.exchange) CHECK(stage.bytes == 8.0 * 512);
  }
  CHECK(run.plan().exchange_bytes() == 8 * 512);
}

TEST_CASE("buffers lie apart inside their memory, and share only where one rank is alone") {
  for (const int ranks : {1, 4}) {
    for (const Dispatch dispatch : {Dispatch::index, Dispatch::einsum}) {
      const LayerPlan plan = plan_layer(make("top2+fr+ir", dispatch, ranks));
      const std::uintptr_t base = std::uintptr_t{1} << 20;
      // NOLINTNEXTLINE(performance-no-int-to-ptr)
      const LayerMemory memory = carve(reinterpret_cast<void*>(base), plan);
      std::map<std::uintptr_t, std::size_t> pieces;
      std::size_t shared = 0;
      for (std::size_t at = 0; at < buffer_count; ++at) {
        const auto buffer = static_cast<Buffer>(at);
        INFO(name_of(buffer));
        CHECK((memory[buffer] == nullptr) == (plan.bytes[at] == 0));
        if (plan.bytes[at] == 0) continue;
        const auto address = reinterpret_cast<std::uintptr_t>(memory[buffer]);
        CHECK(address % 256 == 0);
        CHECK(address + plan.bytes[at] <= base + plan.memory_bytes());
        shared += pieces.count(address);
        pieces[address] = std::max(pieces[address], plan.bytes[at]);
      }
      CHECK(shared == (ranks == 1 ? 4 : 0));
      std::uintptr_t end = 0;
      for (const auto& [address, bytes] : pieces) {
        CHECK(address >= end);
        end = address + bytes;
      }
      // P C rows for each of E / P experts are C for each of E, however many ranks there are.
      CHECK(plan.bytes_of(Buffer::hidden) == 8 * 8 * 2 * 48 * 2);
      CHECK(plan.bytes_of(Buffer::up_weight) / 2 == 96 * 32 * (ranks == 1 ? 8 : 2));
      CHECK((plan.bytes_of(Buffer::combine_mask) > 0) == (dispatch == Dispatch::einsum));
    }
  }
}

TEST_CASE("the plan counts the products that are carried out") {
  for (const Dispatch dispatch : {Dispatch::index, Dispatch::einsum}) {
    LayerRun run = run_of(make("top2", dispatch, 4));
    Recorder forward, backward;
    run.forward(forward);
    run.backward(backward);
    // The gate's product is inside its kernel: 2 S h E.
    const double gate = 2.0 * 64 * 32 * 8;
    CHECK(run.plan().flops(Pass::forward) == forward.flops + gate);
    CHECK(run.plan().flops(Pass::backward) == backward.flops);
    // 6 h f per padded row, and a mask's 2 S (E C) h twice; backward twice and thrice those.
    const double rows = 64, mask = dispatch == Dispatch::einsum ? 2.0 * 64 * 64 * 32 : 0;
    const double ffn = 6.0 * 32 * 48 * rows;
    CHECK(run.plan().flops(Pass::forward) == ffn + 2 * mask + gate);
    CHECK(run.plan().flops(Pass::backward) == 2 * ffn + 3 * mask + 2 * gate);
  }
}

TEST_CASE("the bytes of the experts are those of the operands of their products and activation") {
  const LayerPlan plan = plan_layer(make("top2", Dispatch::index, 4));
  const auto bytes = [&](experts::Tensor tensor) {
    return static_cast<double>(plan.ffn.bytes(tensor));
  };
  const auto of_products = [&](const std::vector<experts::ExpertGemm>& calls) {
    double sum = 0;
    for (const experts::ExpertGemm& call : calls) {
      sum += bytes(call.left) + bytes(call.right) + bytes(call.result);
    }
    return sum;
  };
  const auto of_stage = [&](Pass pass, StageKind kind) {
    for (const Stage& stage : plan.stages(pass)) {
      if (stage.kind == kind) return stage.bytes;
    }
    return 0.0;
  };
  using enum experts::Tensor;
  CHECK(of_stage(Pass::forward, StageKind::experts) ==
        of_products(plan.ffn.forward) + bytes(hidden) + bytes(activated));
  CHECK(of_stage(Pass::backward, StageKind::experts_backward) ==
        of_products(plan.ffn.backward) + bytes(hidden) + bytes(activated_gradient) +
            bytes(hidden_gradient));
}

TEST_CASE("every kernel that the simulator prices in a layer has a stage") {
  // The simulator's kernel to the stage that does its work here.
  const std::map<std::string, StageKind> counterpart = {
      {"fused gate", StageKind::gate},
      {"gate choices", StageKind::gate},
      {"gate positions", StageKind::assign},
      {"gate weights", StageKind::weigh},
      {"gate rectification", StageKind::collect},
      {"permute", StageKind::permute},
      {"einsum mask", StageKind::dispatch_mask},
      {"einsum dispatch", StageKind::dispatch_product},
      {"ffn up", StageKind::experts},
      {"activation", StageKind::experts},
      {"ffn down", StageKind::experts},
      {"rectify gather", StageKind::collect},
      {"rectify blend", StageKind::ir_experts},
      {"combine", StageKind::combine},
      {"einsum weights", StageKind::combine_mask},
      {"einsum combine", StageKind::combine_product},
      {"gate choices backward", StageKind::router_backward},
      {"fused gate by input", StageKind::gate_by_input},
      {"fused gate by weight", StageKind::gate_by_weight},
      {"combine backward", StageKind::combine_backward},
      {"einsum combine by weight", StageKind::mask_by_weight},
      {"einsum combine by input", StageKind::mask_by_input},
      {"einsum weights backward", StageKind::read_mask},
      {"ffn up by input", StageKind::experts_backward},
      {"ffn up by weight", StageKind::experts_backward},
      {"activation backward", StageKind::experts_backward},
      {"ffn down by input", StageKind::experts_backward},
      {"ffn down by weight", StageKind::experts_backward},
      {"rectify gather backward", StageKind::ir_experts_backward},
      {"rectify blend backward", StageKind::ir_experts_backward},
      {"einsum dispatch by input", StageKind::dispatch_by_input},
  };
  moesim::scenario::Scenario scenario;
  scenario.profile =
      std::make_shared<moesim::profile::Profile>(moesim::profile::Profile::load("h100-sxm"));
  scenario.model =
      std::make_shared<moesim::model::Model>(moesim::model::Model::load("llama2-7b-moe8"));
  scenario.cluster =
      std::make_shared<moesim::cluster::Cluster>(moesim::cluster::Cluster::load("hgx-h100"));
  scenario.fusion = moesim::scenario::Fusion::fused;
  for (const Dispatch dispatch : {Dispatch::index, Dispatch::einsum}) {
    scenario.dispatch = dispatch == Dispatch::index ? moesim::scenario::Dispatch::index
                                                    : moesim::scenario::Dispatch::einsum;
    const LayerPlan plan = plan_layer(make("top2+ir", dispatch, 4));
    const step::KernelPricer pricer(scenario);
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      const auto priced = pass == Pass::forward ? step::Pass::forward : step::Pass::backward;
      std::set<StageKind> stages;
      for (const Stage& stage : plan.stages(pass)) stages.insert(stage.kind);
      for (const step::Kernels& kernels :
           {pricer.router(priced), pricer.dispatch(priced, 8), pricer.experts(priced, 8, 0),
            pricer.combine(priced, 8), pricer.rectify(priced, 3)}) {
        for (const step::Kernel& kernel : kernels) {
          INFO(kernel.label << " " << name_of(pass) << " " << name_of(dispatch));
          const auto found = counterpart.find(kernel.label);
          REQUIRE(found != counterpart.end());
          // The backward of the permute is priced by its forward's label: the same bytes.
          const StageKind kind = kernel.label == "permute" && pass == Pass::backward
                                     ? StageKind::permute_backward
                                     : found->second;
          CHECK(stages.count(kind) == 1);
        }
      }
    }
    // And the bytes that it sends are those that the simulator prices.
    LayerProblem real = make("top2", dispatch, 8);
    real.hidden = 4096;
    real.router.config.capacity_factor = Decimal::parse("2", "factor");
    CHECK(static_cast<double>(plan_layer(real).exchange_bytes()) == pricer.dispatch_bytes(16));
  }
}

TEST_CASE("the simulator's price list of a layer has its stages, by name and in order") {
  moesim::scenario::Scenario scenario;
  scenario.profile =
      std::make_shared<moesim::profile::Profile>(moesim::profile::Profile::load("h100-sxm"));
  scenario.model =
      std::make_shared<moesim::model::Model>(moesim::model::Model::load("llama2-7b-moe8"));
  scenario.cluster =
      std::make_shared<moesim::cluster::Cluster>(moesim::cluster::Cluster::load("hgx-h100"));
  for (const int ranks : {1, 8}) {
    for (const char* router : {"top2", "top1+ir", "top2+fr+ir"}) {
      for (const Dispatch dispatch : {Dispatch::index, Dispatch::einsum}) {
        scenario.expert_parallel = scenario.gpus = ranks;
        scenario.router = ::moesim::routing::parse_router(router, 0);
        scenario.dispatch = dispatch == Dispatch::index ? moesim::scenario::Dispatch::index
                                                        : moesim::scenario::Dispatch::einsum;
        const LayerPlan plan = plan_layer(make(router, dispatch, ranks));
        for (const Pass pass : {Pass::forward, Pass::backward}) {
          INFO(router << " " << name_of(dispatch) << " " << name_of(pass) << " " << ranks);
          std::vector<std::string> names, priced;
          for (const Stage& stage : plan.stages(pass)) names.emplace_back(stage.name);
          for (const step::LayerStage& stage : step::padded_layer_stages(
                   scenario, pass == Pass::forward ? step::Pass::forward : step::Pass::backward,
                   {2048, 100, 0.25})) {
            priced.push_back(stage.name);
            CHECK(stage.estimate.time_us > 0);
          }
          CHECK(priced == names);
        }
      }
    }
  }
}

TEST_CASE("layers that cannot be are refused by name") {
  const auto refused = [](const LayerProblem& problem) { plan_layer(problem); };
  LayerProblem problem = make("top2+ir", Dispatch::index, 2);
  problem.hidden = 20;
  CHECK_THROWS_WITH(refused(problem), ContainsSubstring("a hidden size of 20"));
  problem = make("top2", Dispatch::index, 2);
  problem.router.tokens = 0;
  CHECK_THROWS_WITH(refused(problem), ContainsSubstring("no tokens"));
  problem = make("top2", Dispatch::index, 2);
  problem.router.config.capacity_factor = Decimal::parse("0", "factor");
  CHECK_THROWS_WITH(refused(problem), ContainsSubstring("--capacity-factor"));
  problem = make("top2", Dispatch::index, 2);
  problem.router.config.weights = ::moesim::routing::Weights::raw;
  CHECK_THROWS_WITH(refused(problem), ContainsSubstring("--weights raw"));
  problem = make("top2+ir@node", Dispatch::index, 2);
  CHECK_THROWS_WITH(refused(problem), ContainsSubstring("+ir@node"));
  problem = make("top2+ir", Dispatch::index, 2);
  problem.router.config.ir_compute = ::moesim::routing::IrCompute::grouped;
  CHECK_THROWS_WITH(refused(problem), ContainsSubstring("--ir-compute grouped"));
  problem = make("top2", Dispatch::index, 2);
  problem.router.config.capacity_scope = ::moesim::routing::CapacityScope::group;
  CHECK_THROWS_WITH(refused(problem), ContainsSubstring("--capacity-scope group"));
  problem = make("top1", Dispatch::einsum, 1);
  problem.router.experts = 3;
  problem.router.tokens = 9;
  CHECK_THROWS_AS(refused(problem), UsageError);
  CHECK_THROWS_WITH(refused(problem), ContainsSubstring("16-byte pieces"));
}
