#pragma once

#include <optional>
#include <vector>

#include "kernels/exchange/arguments.hpp"
#include "kernels/experts/ffn.hpp"
#include "kernels/layer/plan.hpp"

namespace moesim::kernels::layer {

// An all-to-all of equal blocks: `blocks` for each of `ranks` ranks. Ordered by rank, then block,
// on the side of the tokens; by block, then rank, on the side of the experts, whose rows of all
// ranks then lie together.
struct BlockExchange {
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t block_bytes = 0;
  int ranks = 1;
  int blocks = 1;
  bool to_experts = true;

  // Where block `block` for (from) a rank lies on the side sent (received), in bytes.
  std::size_t sent_at(int rank, int block) const { return at(rank, block, to_experts); }
  std::size_t received_at(int rank, int block) const { return at(rank, block, !to_experts); }

 private:
  std::size_t at(int rank, int block, bool rank_first) const {
    const int place = rank_first ? rank * blocks + block : block * ranks + rank;
    return static_cast<std::size_t>(place) * block_bytes;
  }
};

// Who carries out the stages of a layer: a GPU, or a test.
class LayerBackend : public experts::FfnBackend {
 public:
  virtual void begin(const Stage&) {}
  virtual void end(const Stage&) {}
  virtual void gate(const routing::GateArguments& in) = 0;
  virtual void assign(const routing::AssignArguments& in) = 0;
  virtual void weigh(const routing::WeighArguments& in) = 0;
  virtual void collect(const routing::CollectArguments& in) = 0;
  virtual void router_backward(const routing::BackwardArguments& in) = 0;
  virtual void permute(const exchange::DispatchArguments& in) = 0;
  virtual void combine(const exchange::CombineArguments& in) = 0;
  virtual void combine_backward(const exchange::CombineBackwardArguments& in) = 0;
  virtual void one_hot(const exchange::OneHotArguments& in) = 0;
  virtual void read_one_hot(const exchange::MaskGradientArguments& in) = 0;
  virtual void gemm(const Gemm& gemm, const void* left, const void* right, void* result) = 0;
  virtual void exchange(const BlockExchange& in) = 0;
  virtual void narrow(const float* from, void* to, std::int64_t count) = 0;  // to bf16
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  // `count` values from the device: the one place that waits.
  virtual std::vector<std::int32_t> read_counts(const std::int32_t* from, int count) = 0;
};

// One rank's layer over one carved memory. The given buffers are filled by the caller; a backward
// follows the forward whose intermediate results it reads. Results: out; x_gradient,
// logit_gradient, and the gradients of the three weights, written whole. Ranks of a group have to
// have the same number of tokens, and call the same passes in the same order.
class LayerRun {
 public:
  LayerRun(LayerPlan plan, const LayerMemory& memory);

  void forward(LayerBackend& backend) { run(Pass::forward, backend); }
  void backward(LayerBackend& backend) { run(Pass::backward, backend); }
  // One stage alone, in the plan's order.
  void run(const Stage& stage, LayerBackend& backend);

  const LayerPlan& plan() const { return plan_; }
  const LayerMemory& memory() const { return memory_; }
  const routing::RouterBuffers& router() const { return router_; }
  std::int64_t ir_rows() const { return ir_ffn_ ? ir_ffn_->layout.rows() : 0; }  // of the last one

 private:
  void run(Pass pass, LayerBackend& backend);
  void run_router(StageKind kind, LayerBackend& backend);
  void run_index(StageKind kind, LayerBackend& backend);
  void run_einsum(StageKind kind, LayerBackend& backend);
  void run_ir(StageKind kind, LayerBackend& backend);
  void exchange(Buffer from, Buffer to, bool to_experts, LayerBackend& backend);
  exchange::RouteMap map() const;
  exchange::RouteMap ir_map() const;
  experts::FfnTensors ffn_tensors() const;
  experts::FfnTensors ir_tensors() const;
  template <typename Value>
  Value* as(Buffer buffer) const {
    return static_cast<Value*>(memory_[buffer]);
  }

  LayerPlan plan_;
  LayerMemory memory_;
  routing::RouterBuffers router_;
  int row_vectors_;
  std::optional<experts::FfnPlan> ir_ffn_;
};

}  // namespace moesim::kernels::layer
