#pragma once

#include <memory>

#include "kernels/measure/cuda/context.hpp"
#include "kernels/measure/points/device.hpp"

namespace moesim::kernels::measure::cuda {

// A point's workload on a device; inputs from `seed`. They throw OutOfDeviceMemory, NotMeasurable
// or Error.
std::unique_ptr<Workload> gemm_workload(Context& context, const PointSpec& spec,
                                        std::uint64_t seed);
std::unique_ptr<Workload> memory_workload(Context& context, const PointSpec& spec,
                                          std::uint64_t seed);
std::unique_ptr<Workload> collective_workload(Context& context, const PointSpec& spec,
                                              std::uint64_t seed);

// op "route": from logits to slots and weights; op "gate": from bf16 x and router weights.
std::unique_ptr<Workload> routing_workload(Context& context, const PointSpec& spec,
                                           std::uint64_t seed);
// One launch of it: op "choose" (softmax and top-k'), "assign" (capacity) or "router-backward".
std::unique_ptr<Workload> stage_workload(Context& context, const PointSpec& spec,
                                         std::uint64_t seed);
// op "overlap": a product or an exchange, alone or while the other one runs.
std::unique_ptr<Workload> overlap_workload(Context& context, const PointSpec& spec,
                                           std::uint64_t seed);
// op "expert-ffn": the FFNs of a GPU's local experts.
std::unique_ptr<Workload> expert_workload(Context& context, const PointSpec& spec,
                                          std::uint64_t seed);
// op "attention": causal attention forward by cuDNN.
std::unique_ptr<Workload> attention_workload(Context& context, const PointSpec& spec,
                                             std::uint64_t seed);
// op "permute" or "combine", or the backward of one ("combine-backward").
std::unique_ptr<Workload> row_workload(Context& context, const PointSpec& spec, std::uint64_t seed);

// op "layer": a whole MoE layer (kernels/layer), one pass of it; params as layer_point() sets them.
std::unique_ptr<Workload> layer_workload(Context& context, const PointSpec& spec,
                                         std::uint64_t seed);

// A workload whose call can be queued on any stream, beside another.
class Queueable {
 public:
  virtual ~Queueable() = default;
  virtual void queue(cudaStream_t stream) = 0;
};

// What kernels on rotated buffers share: `launch` queues one call on copy `copy` of the buffers.
class RotatedWorkload : public Workload {
 public:
  RotatedWorkload(Context& context, std::size_t copies) : context_(context), copies_(copies) {}
  ~RotatedWorkload() override { context_.timer->forget(); }
  RotatedWorkload(const RotatedWorkload&) = delete;  // its graph points into its buffers
  RotatedWorkload& operator=(const RotatedWorkload&) = delete;

  std::string verify() override;
  Run cold() override;
  double hot(std::size_t calls) override;
  std::optional<Activity> trace() override;
  std::string timer() const override { return "cuda-events, cuda-graph"; }

 protected:
  virtual void launch(std::size_t copy) = 0;
  // The outputs filled with NaNs, the stream idle when it returns.
  virtual void poison() = 0;
  // After a call on copy 0 has ended: "" or what is wrong.
  virtual std::string check() = 0;

  cudaStream_t stream() const { return context_.timer->stream(); }
  std::size_t next_copy() { return turn_++ % copies_; }
  Context& context_;
  std::size_t copies_;

 private:
  std::size_t turn_ = 0;
};

// `count` values from device memory at `from`.
template <typename Value>
std::vector<Value> download(const Value* from, std::size_t count) {
  std::vector<Value> values(count);
  MOESIM_CUDA(cudaMemcpy(values.data(), from, count * sizeof(Value), cudaMemcpyDeviceToHost));
  return values;
}

// The value of bf16 bits.
double bf16_value(std::uint16_t bits);
// |got - wanted| within two units in the last place of bf16 and `slack`; NaN never is.
bool close(double got, double wanted, double slack);

}  // namespace moesim::kernels::measure::cuda
