#include "kernels/routing/router.hpp"

#include "sim/base/error.hpp"

namespace moesim::kernels::routing {

DeviceRouter::DeviceRouter(const RouterProblem& problem, void* memory)
    : problem_(problem), buffers_(carve(memory, problem)) {
  problem_.check();
  if (problem_.ranks > 1 &&
      problem_.config.capacity_scope == ::moesim::routing::CapacityScope::group) {
    throw UsageError(
        "--capacity-scope group shares an expert's slots among several GPUs: one rank's kernels "
        "cannot settle it alone; use --capacity-scope source");
  }
}

void DeviceRouter::route(const float* logits, Stream stream) const {
  launch_choose(choose_arguments(problem_, buffers_, logits), stream);
  assign(stream);
}

void DeviceRouter::gate_and_route(const void* x, const void* weights, int hidden, bool bfloat16,
                                  float* logits, Stream stream) const {
  const GateArguments in{x, weights, hidden, logits, choose_arguments(problem_, buffers_, logits)};
  launch_gate(in, bfloat16, stream);
  assign(stream);
}

void DeviceRouter::gate_and_assign(const void* x, const void* weights, int hidden, bool bfloat16,
                                   float* logits, Stream stream) const {
  const GateArguments in{x, weights, hidden, logits, choose_arguments(problem_, buffers_, logits)};
  launch_gate(in, bfloat16, stream);
  launch_assign(assign_arguments(problem_, buffers_), stream);
}

void DeviceRouter::assign(Stream stream) const {
  launch_assign(assign_arguments(problem_, buffers_), stream);
  launch_weigh(weigh_arguments(problem_, buffers_), stream);
  if (problem_.rectified()) launch_collect(collect_arguments(problem_, buffers_), stream);
}

void DeviceRouter::backward(const float* logits, const float* upstream, const float* ir_upstream,
                            NormaliserRule rule, float* gradient, Stream stream) const {
  launch_backward(
      backward_arguments(problem_, buffers_, logits, upstream, ir_upstream, rule, gradient),
      stream);
}

}  // namespace moesim::kernels::routing
