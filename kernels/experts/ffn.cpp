#include "kernels/experts/ffn.hpp"

namespace moesim::kernels::experts {

void run_forward(const FfnPlan& plan, const FfnTensors& tensors, FfnBackend& backend) {
  if (plan.layout.rows() == 0) return;
  backend.multiply(plan.forward[0], tensors);
  backend.activate(
      {plan.layout.rows(), plan.shape.ffn, tensors[Tensor::hidden], tensors[Tensor::activated]});
  backend.multiply(plan.forward[1], tensors);
}

void run_backward(const FfnPlan& plan, const FfnTensors& tensors, FfnBackend& backend) {
  for (const Tensor weight : {Tensor::down_weight_gradient, Tensor::up_weight_gradient}) {
    const std::size_t each = plan.elements(weight) / static_cast<std::size_t>(plan.shape.experts);
    for (const int expert : plan.idle) {
      if (plan.options.accumulates) break;
      const auto offset = static_cast<std::int64_t>(each) * expert;
      backend.clear(tensors.element(weight, offset), 2 * each);
    }
  }
  if (plan.layout.rows() == 0) return;
  backend.multiply(plan.backward[0], tensors);
  backend.multiply(plan.backward[1], tensors);
  backend.activate_backward({plan.layout.rows(), plan.shape.ffn, tensors[Tensor::hidden],
                             tensors[Tensor::activated_gradient],
                             tensors[Tensor::hidden_gradient]});
  backend.multiply(plan.backward[2], tensors);
  backend.multiply(plan.backward[3], tensors);
}

}  // namespace moesim::kernels::experts
