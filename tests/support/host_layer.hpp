#pragma once

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "kernels/exchange/one_hot.cuh"
#include "kernels/exchange/rows.cuh"
#include "kernels/layer/narrow.cuh"
#include "kernels/layer/reference.hpp"
#include "kernels/layer/run.hpp"
#include "kernels/routing/backward.cuh"
#include "kernels/routing/gate.cuh"
#include "tests/kernels/routing/kernel_router.hpp"
#include "tests/support/host_ffn.hpp"

// A layer's stages on the host: kernels by their own sources, products as cuBLAS would get them.
namespace moesim::kernels::testing {

class HostLayer : public layer::LayerBackend {
 public:
  void gate(const routing::GateArguments& in) override {
    routing::with_gate_tile(in.choose.experts, [&](auto tile) {
      constexpr int width = decltype(tile)::value;
      const int tiles = routing::blocks_for(in.choose.experts, width);
      const int blocks = routing::blocks_for(in.choose.tokens, routing::gate_tokens) * tiles;
      simt::launch({blocks, routing::gate_threads, routing::GateShape<width, true>::shared_bytes},
                   [&] { routing::gate_bfloat16<width, true>(in); });
      if (tiles > 1) routing::run_choose(in.choose, simt::Turns::forward);
    });
  }
  void assign(const routing::AssignArguments& in) override {
    routing::run_assign(in, simt::Turns::forward);
  }
  void weigh(const routing::WeighArguments& in) override {
    routing::run_weigh(in, simt::Turns::forward);
  }
  void collect(const routing::CollectArguments& in) override {
    routing::run_collect(in, simt::Turns::forward);
  }
  void router_backward(const routing::BackwardArguments& in) override {
    routing::with_layout(in.experts, [&](auto lanes, auto values) {
      constexpr int width = decltype(lanes)::value;
      const int blocks =
          routing::blocks_for(std::int64_t{in.tokens} * width, routing::backward_threads);
      simt::launch({blocks, routing::backward_threads, 0},
                   [&] { routing::route_backward<width, decltype(values)::value>(in); });
    });
  }
  void permute(const exchange::DispatchArguments& in) override {
    simt::launch(rows, [&] { exchange::dispatch_rows(in); });
  }
  void combine(const exchange::CombineArguments& in) override {
    simt::launch({rows.blocks, rows.threads, exchange::combine_shared_bytes},
                 [&] { exchange::combine_rows<Bfloat16>(in); });
  }
  void combine_backward(const exchange::CombineBackwardArguments& in) override {
    simt::launch({rows.blocks, rows.threads, exchange::combine_backward_shared_bytes},
                 [&] { exchange::combine_rows_backward<Bfloat16>(in); });
  }
  void one_hot(const exchange::OneHotArguments& in) override {
    simt::launch(rows, [&] { exchange::fill_one_hot<Bfloat16>(in); });
  }
  void read_one_hot(const exchange::MaskGradientArguments& in) override {
    simt::launch(rows, [&] { exchange::read_one_hot<Bfloat16>(in); });
  }
  void gemm(const Gemm& gemm, const void* left, const void* right, void* result) override {
    host_gemm(gemm, left, right, result);
  }
  // Kept until all ranks have asked for it.
  void exchange(const layer::BlockExchange& in) override { pending = in; }
  void narrow(const float* from, void* to, std::int64_t count) override {
    simt::launch({2, layer::narrow_threads, 0},
                 [&] { layer::narrow_floats(from, static_cast<Bfloat16*>(to), count); });
  }
  void copy(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  std::vector<std::int32_t> read_counts(const std::int32_t* from, int count) override {
    return {from, from + count};
  }
  void multiply(const experts::ExpertGemm& call, const experts::FfnTensors& tensors) override {
    ffn_.multiply(call, tensors);
  }
  void activate(const experts::SwigluArguments& in) override { ffn_.activate(in); }
  void activate_backward(const experts::SwigluBackwardArguments& in) override {
    ffn_.activate_backward(in);
  }
  void clear(void* memory, std::size_t bytes) override { ffn_.clear(memory, bytes); }

  layer::BlockExchange pending;

 private:
  static constexpr simt::LaunchShape rows{3, 64, 0};
  HostFfn ffn_;
};

// The ranks of one layer, stage by stage together, their exchanges by copies between them.
class HostGroup {
 public:
  // Inputs and weights drawn from `seed`; all else starts as garbage.
  HostGroup(const layer::LayerProblem& problem, unsigned seed) {
    for (int rank = 0; rank < problem.router.ranks; ++rank) {
      layer::LayerProblem own = problem;
      own.router.rank = rank;
      ranks_.push_back(std::make_unique<Rank>(layer::plan_layer(own)));
      fill(*ranks_.back(), seed, rank);
    }
  }

  void run(layer::Pass pass) {
    for (const layer::Stage& stage : ranks_[0]->run.plan().stages(pass)) {
      for (auto& rank : ranks_) rank->run.run(stage, rank->backend);
      if (stage.exchange) deliver();
    }
  }

  int ranks() const { return static_cast<int>(ranks_.size()); }
  const layer::LayerRun& at(int rank) const { return ranks_[static_cast<std::size_t>(rank)]->run; }
  template <typename Value = Bfloat16>
  Value* buffer(int rank, layer::Buffer which) const {
    return static_cast<Value*>(at(rank).memory()[which]);
  }

 private:
  struct Rank {
    std::vector<Vector16> memory;
    layer::LayerRun run;
    HostLayer backend;

    explicit Rank(const layer::LayerPlan& plan)
        : memory(plan.memory_bytes() / 16 + 16,
                 Vector16{{0x7fc07fc0U, 0x7fc07fc0U, 0x7fc07fc0U, 0x7fc07fc0U}}),
          run(plan, layer::carve(aligned(), plan)) {}
    void* aligned() {
      const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
      return reinterpret_cast<unsigned char*>(memory.data()) + (256 - address % 256) % 256;
    }
  };

  // The gate's weights are the same on all ranks.
  void fill(Rank& rank, unsigned seed, int index) {
    using layer::Buffer;
    const auto draw = [&](Buffer which, float scale, unsigned own) {
      std::mt19937 engine(own);
      auto* values = static_cast<Bfloat16*>(rank.run.memory()[which]);
      const std::size_t count = rank.run.plan().bytes_of(which) / 2;
      for (std::size_t at = 0; at < count; ++at) {
        values[at] = to_bfloat16(scale * (static_cast<float>(engine()) * 0x1p-31F - 1.0F));
      }
    };
    const unsigned own = seed + 100 * static_cast<unsigned>(index + 1);
    draw(Buffer::x, 1, own + 1);
    draw(Buffer::gate_weight, 1, seed);
    draw(Buffer::up_weight, 1, own + 2);
    draw(Buffer::down_weight, 1, own + 3);
    draw(Buffer::out_gradient, 1, own + 4);
  }

  void deliver() {
    for (int from = 0; from < ranks(); ++from) {
      for (int to = 0; to < ranks(); ++to) {
        const layer::BlockExchange& sent = ranks_[static_cast<std::size_t>(from)]->backend.pending;
        const layer::BlockExchange& got = ranks_[static_cast<std::size_t>(to)]->backend.pending;
        for (int block = 0; block < sent.blocks; ++block) {
          std::memcpy(static_cast<unsigned char*>(got.to) + got.received_at(from, block),
                      static_cast<const unsigned char*>(sent.from) + sent.sent_at(to, block),
                      sent.block_bytes);
        }
      }
    }
  }

  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace moesim::kernels::testing
