#pragma once

#include <string>
#include <vector>

#include "kernels/measure/cuda/workloads/context.hpp"
#include "kernels/measure/devices/device.hpp"
#include "kernels/measure/points/close.hpp"

namespace moesim::kernels::measure::cuda {

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

}  // namespace moesim::kernels::measure::cuda
