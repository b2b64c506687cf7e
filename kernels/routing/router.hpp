#pragma once

#include "kernels/routing/launch.hpp"
#include "kernels/routing/plan.hpp"

namespace moesim::kernels::routing {

// The router of one rank on a GPU, driven by the simulator's own configuration. Everything is
// queued on the caller's stream and nothing waits: counts stay on the device.
class DeviceRouter {
 public:
  // `memory` is device memory of buffer_bytes(problem), aligned to 256 bytes, which must outlive
  // this object. Throws UsageError for problems that RouterProblem::check() refuses, and for
  // capacity over a group of several ranks, whose choices would have to be gathered first.
  DeviceRouter(const RouterProblem& problem, void* memory);

  // Logits [tokens, experts] to all of buffers(): 3 launches, 4 with IR.
  void route(const float* logits, Stream stream) const;
  // The same from x [tokens, hidden] and W [experts, hidden], bf16 or fp32; leaves the logits in
  // `logits`: launches as for launch_gate(), and 2, 3 with IR.
  void gate_and_route(const void* x, const void* weights, int hidden, bool bfloat16, float* logits,
                      Stream stream) const;
  // The same without weights and IR, which exchange::launch_weigh_and_dispatch() finds as it moves
  // the rows: 1 launch less.
  void gate_and_assign(const void* x, const void* weights, int hidden, bool bfloat16, float* logits,
                       Stream stream) const;
  // Assigns choices that are there already (the fused gate): one launch less than route().
  void assign(Stream stream) const;
  // 1 launch; arguments as for backward_arguments().
  void backward(const float* logits, const float* upstream, const float* ir_upstream,
                NormaliserRule rule, float* gradient, Stream stream) const;

  const RouterProblem& problem() const { return problem_; }
  const RouterBuffers& buffers() const { return buffers_; }

 private:
  RouterProblem problem_;
  RouterBuffers buffers_;
};

}  // namespace moesim::kernels::routing
