#pragma once

#include "kernels/experts/arguments.hpp"
#include "kernels/experts/plan.hpp"

namespace moesim::kernels::experts {

// Where the tensors of a plan are; those of the backward may stay null in a forward.
struct FfnTensors {
  std::array<void*, tensor_count> at{};
  void*& operator[](Tensor tensor) { return at[static_cast<std::size_t>(tensor)]; }
  void* operator[](Tensor tensor) const { return at[static_cast<std::size_t>(tensor)]; }
  // bf16 element `offset` of a tensor.
  void* element(Tensor tensor, std::int64_t offset) const {
    return static_cast<std::uint16_t*>((*this)[tensor]) + offset;
  }
};

// Who carries out the steps of a plan: a GPU, or a test.
class FfnBackend {
 public:
  virtual ~FfnBackend() = default;
  virtual void multiply(const ExpertGemm& call, const FfnTensors& tensors) = 0;
  virtual void activate(const SwigluArguments& in) = 0;
  virtual void activate_backward(const SwigluBackwardArguments& in) = 0;
  virtual void clear(void* memory, std::size_t bytes) = 0;
};

// Two products around an activation; no rows, no call.
void run_forward(const FfnPlan& plan, const FfnTensors& tensors, FfnBackend& backend);
// Needs what the forward left in input, hidden and activated. Four products around an activation.
void run_backward(const FfnPlan& plan, const FfnTensors& tensors, FfnBackend& backend);

}  // namespace moesim::kernels::experts
