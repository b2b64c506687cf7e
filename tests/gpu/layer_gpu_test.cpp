#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "kernels/layer/device_layer.hpp"
#include "kernels/measure/cuda/libraries/nccl.hpp"
#include "kernels/routing/compare.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "tests/gpu/device.hpp"
#include "tests/gpu/several_gpus.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/layer_check.hpp"

using namespace moesim::kernels;
using namespace moesim::kernels::layer;
using moesim::kernels::routing::NormaliserRule;

namespace {

LayerProblem make(const char* router, const char* factor, Dispatch dispatch, int tokens,
                  int ranks = 1) {
  LayerProblem problem;
  problem.router.config = ::moesim::routing::parse_router(router, 0);
  problem.router.config.capacity_factor = moesim::Decimal::parse(factor, "factor");
  problem.router.tokens = tokens;
  problem.router.experts = 8;
  problem.router.ranks = ranks;
  problem.hidden = 128;
  problem.ffn = 200;
  problem.dispatch = dispatch;
  problem.grouped = has_grouped_gemm();
  return problem;
}

// One rank's layer on the current device after a forward and a backward, and its memory here.
class Done {
 public:
  Done(const LayerProblem& problem, unsigned seed, Exchanger exchanger = {})
      : plan_(plan_layer(problem)) {
    fill(seed);
    DeviceBuffer<unsigned char> memory(host_);
    const CublasHandle cublas;
    LayerRun run(plan_, carve(memory.data(), plan_));
    DeviceLayer backend(cublas.get(), nullptr, std::move(exchanger));
    run.forward(backend);
    run.backward(backend);
    ir_rows = run.ir_rows();
    host_ = memory.download();
    at_ = carve(host_.data(), plan_);
    router_ = routing::carve(at_[Buffer::router], problem.router);
  }

  const LayerPlan& plan() const { return plan_; }
  const routing::RouterBuffers& router() const { return router_; }
  template <typename Value = Bfloat16>
  const Value* buffer(Buffer which) const {
    return static_cast<const Value*>(at_[which]);
  }
  std::int64_t ir_rows = 0;

 private:
  // NaNs, and the given buffers drawn at random; the gate's weights are the same on all ranks.
  void fill(unsigned seed) {
    host_.assign(plan_.memory_bytes(), 0x7f);
    at_ = carve(host_.data(), plan_);
    std::mt19937 of_all(seed), own(seed + 1 + static_cast<unsigned>(plan_.problem.router.rank));
    const float unit = 2 / std::sqrt(static_cast<float>(plan_.problem.hidden));
    const auto draw = [this](Buffer buffer, float scale, std::mt19937& engine) {
      auto* values = static_cast<Bfloat16*>(at_[buffer]);
      for (std::size_t place = 0; place < plan_.bytes_of(buffer) / 2; ++place) {
        values[place] = to_bfloat16(scale * (static_cast<float>(engine()) * 0x1p-31F - 1.0F));
      }
    };
    draw(Buffer::gate_weight, unit, of_all);
    draw(Buffer::x, 1, own);
    draw(Buffer::up_weight, unit, own);
    draw(Buffer::down_weight, unit, own);
    draw(Buffer::out_gradient, 1, own);
  }

  LayerPlan plan_;
  std::vector<unsigned char> host_;
  LayerMemory at_;  // in `host_`
  routing::RouterBuffers router_;
};

// The ranks of one layer, as check_layer() takes them.
class DoneGroup {
 public:
  explicit DoneGroup(int ranks) : ranks_(static_cast<std::size_t>(ranks)) {}
  void set(int rank, std::unique_ptr<Done> done) {
    ranks_[static_cast<std::size_t>(rank)] = std::move(done);
  }
  int ranks() const { return static_cast<int>(ranks_.size()); }
  const Done& at(int rank) const { return *ranks_[static_cast<std::size_t>(rank)]; }
  template <typename Value = Bfloat16>
  const Value* buffer(int rank, Buffer which) const {
    return at(rank).buffer<Value>(which);
  }

 private:
  std::vector<std::unique_ptr<Done>> ranks_;
};

void check_routes(const Done& done) {
  const routing::RouterProblem& problem = done.plan().problem.router;
  const auto* logits = done.buffer<float>(Buffer::logits);
  const std::vector<float> rows(logits, logits + problem.tokens * problem.experts);
  // The other ranks' tokens change nothing for this one's.
  std::vector<::moesim::routing::RankLogits> ranks(static_cast<std::size_t>(problem.ranks));
  ranks[static_cast<std::size_t>(problem.rank)] = {rows, problem.tokens};
  const auto expected =
      ::moesim::routing::route_group(problem.config, problem.experts, ranks, problem.context);
  REQUIRE_THAT(routing::difference(routing::listed(problem, done.router()), expected.routes()),
               Catch::Matchers::Equals(""));
  REQUIRE_THAT(routing::wrong_ir_rows(problem, done.router()), Catch::Matchers::Equals(""));
}

void check(const DoneGroup& group) {
  for (int rank = 0; rank < group.ranks(); ++rank) check_routes(group.at(rank));
  moesim::kernels::testing::check_layer(group);
}

unsigned some_seed() { return std::random_device{}(); }

void check(const LayerProblem& problem) {
  const unsigned seed = some_seed();
  INFO(problem.router.config.name() << " " << name_of(problem.dispatch) << " seed " << seed);
  DoneGroup group(1);
  group.set(0, std::make_unique<Done>(problem, seed));
  check(group);
}

// Checks a group of ranks on a GPU each.
void check_group(const LayerProblem& problem) {
  const unsigned seed = some_seed();
  INFO(problem.router.config.name() << " " << name_of(problem.dispatch) << " seed " << seed
                                    << " ranks " << problem.router.ranks);
  DoneGroup done(problem.router.ranks);
  on_gpus(problem.router.ranks, [&](measure::Group& group, const measure::OnPhase& on_phase) {
    on_phase(problem.router.config.name());
    std::string trouble;
    const auto nccl = measure::cuda::NcclCommunicator::join(group, trouble);
    if (!nccl) throw std::runtime_error(trouble);
    LayerProblem own = problem;
    own.router.rank = group.rank();
    const auto exchange = [&](const BlockExchange& in, cudaStream_t stream) {
      measure::queue_together(
          group, [stream] { MOESIM_CUDA(cudaStreamSynchronize(stream)); },
          [&] { nccl->all_to_all(in, stream); });
    };
    done.set(group.rank(), std::make_unique<Done>(own, seed, exchange));
    group.barrier();  // before a communicator ends
  });
  check(done);
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

TEST_CASE("a layer of several GPUs and its gradients are those of the fp64 reference", "[gpus]") {
  MOESIM_NEEDS_GPUS(2);
  for (const int ranks : {2, 4, 8}) {
    if (ranks > gpus_here()) break;
    for (const Dispatch dispatch : {Dispatch::index, Dispatch::einsum}) {
      for (const char* router : {"top1", "top2", "top2+fr+ir"}) {
        check_group(make(router, "1", dispatch, 64, ranks));
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
    CHECK(std::memcmp(first.buffer(buffer), second.buffer(buffer), first.plan().bytes_of(buffer)) ==
          0);
  }
}
