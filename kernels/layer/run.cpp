#include "kernels/layer/run.hpp"

#include <fmt/format.h>

#include <stdexcept>

namespace moesim::kernels::layer {

using experts::FfnTensors;
using experts::Tensor;

namespace {

// LayerRun::run() has handed a stage to the function of another group.
[[noreturn]] void throw_not_of_group(StageKind kind, const char* group) {
  throw std::logic_error(
      fmt::format("stage {} of a layer is none of {}", static_cast<int>(kind), group));
}

}  // namespace

LayerRun::LayerRun(LayerPlan plan, const LayerMemory& memory)
    : plan_(std::move(plan)),
      memory_(memory),
      router_(routing::carve(memory[Buffer::router], plan_.problem.router)),
      row_vectors_(plan_.problem.hidden / 8) {}

void LayerRun::run(Pass pass, LayerBackend& backend) {
  for (const Stage& stage : plan_.stages(pass)) run(stage, backend);
}

exchange::RouteMap LayerRun::map() const {
  const routing::RouterProblem& problem = plan_.problem.router;
  return {problem.tokens, problem.experts, problem.choices(), problem.capacity(), problem.stride(),
          router_.expert, router_.slot,    router_.kept_rows, router_.ir_row};
}

// The IR rows alone: no choice, no padding.
exchange::RouteMap LayerRun::ir_map() const {
  exchange::RouteMap only = map();
  only.experts = 0;
  only.choices = 0;
  return only;
}

FfnTensors LayerRun::ffn_tensors() const {
  FfnTensors tensors;
  tensors[Tensor::input] = memory_[Buffer::received];
  tensors[Tensor::up_weight] = memory_[Buffer::up_weight];
  tensors[Tensor::hidden] = memory_[Buffer::hidden];
  tensors[Tensor::activated] = memory_[Buffer::activated];
  tensors[Tensor::down_weight] = memory_[Buffer::down_weight];
  tensors[Tensor::output] = memory_[Buffer::expert_out];
  tensors[Tensor::output_gradient] = memory_[Buffer::expert_out_gradient];
  tensors[Tensor::activated_gradient] = memory_[Buffer::activated_gradient];
  tensors[Tensor::hidden_gradient] = memory_[Buffer::hidden_gradient];
  tensors[Tensor::input_gradient] = memory_[Buffer::received_gradient];
  tensors[Tensor::up_weight_gradient] = memory_[Buffer::up_weight_gradient];
  tensors[Tensor::down_weight_gradient] = memory_[Buffer::down_weight_gradient];
  return tensors;
}

FfnTensors LayerRun::ir_tensors() const {
  FfnTensors tensors = ffn_tensors();  // the weights are the same
  tensors[Tensor::input] = memory_[Buffer::ir_rows];
  tensors[Tensor::hidden] = memory_[Buffer::ir_hidden];
  tensors[Tensor::activated] = memory_[Buffer::ir_activated];
  tensors[Tensor::output] = memory_[Buffer::ir_out];
  tensors[Tensor::output_gradient] = memory_[Buffer::ir_out_gradient];
  tensors[Tensor::activated_gradient] = memory_[Buffer::ir_activated_gradient];
  tensors[Tensor::hidden_gradient] = memory_[Buffer::ir_hidden_gradient];
  tensors[Tensor::input_gradient] = memory_[Buffer::ir_rows_gradient];
  return tensors;
}

void LayerRun::exchange(Buffer from, Buffer to, bool to_experts, LayerBackend& backend) {
  const LayerProblem& problem = plan_.problem;
  const auto rows = static_cast<std::size_t>(problem.router.capacity());
  backend.exchange({memory_[from], memory_[to], 2 * rows * static_cast<std::size_t>(problem.hidden),
                    problem.router.ranks, problem.local_experts(), to_experts});
}

void LayerRun::run(const Stage& stage, LayerBackend& backend) {
  backend.begin(stage);
  using enum ::moesim::routing::MoeStageKind;
  switch (stage.kind) {
    case gate:
    case assign:
    case weigh:
    case collect:
    case router_backward:
    case narrow:
    case gate_by_weight:
    case gate_by_input:
      run_router(stage.kind, backend);
      break;
    case permute:
    case combine:
    case combine_backward:
    case permute_backward:
      run_index(stage.kind, backend);
      break;
    case dispatch_mask:
    case dispatch_product:
    case combine_mask:
    case combine_product:
    case mask_by_weight:
    case mask_by_input:
    case read_mask:
    case dispatch_by_input:
      run_einsum(stage.kind, backend);
      break;
    case gather_ir:
    case ir_counts:
    case ir_experts:
    case blend:
    case blend_backward:
    case ir_experts_backward:
    case blend_gradient:
      run_ir(stage.kind, backend);
      break;
    case experts:
      run_forward(plan_.ffn, ffn_tensors(), backend);
      break;
    case experts_backward:
      run_backward(plan_.ffn, ffn_tensors(), backend);
      break;
    case send:
      exchange(Buffer::rows, Buffer::received, true, backend);
      break;
    case send_back:
      exchange(Buffer::expert_out, Buffer::returned, false, backend);
      break;
    case send_back_gradient:
      exchange(Buffer::returned_gradient, Buffer::expert_out_gradient, true, backend);
      break;
    case send_gradient:
      exchange(Buffer::received_gradient, Buffer::rows_gradient, false, backend);
      break;
  }
  backend.end(stage);
}

void LayerRun::run_router(StageKind kind, LayerBackend& backend) {
  const routing::RouterProblem& problem = plan_.problem.router;
  const std::int64_t tokens = problem.tokens, experts = problem.experts;
  const std::int64_t hidden = plan_.problem.hidden;
  auto* logits = as<float>(Buffer::logits);
  auto* gradient = as<float>(Buffer::logit_gradient);
  const void* narrow = memory_[Buffer::narrow_logit_gradient];
  switch (kind) {
    case StageKind::gate:
      backend.clear(router_.invalid, sizeof *router_.invalid);
      return backend.gate({memory_[Buffer::x], memory_[Buffer::gate_weight], plan_.problem.hidden,
                           logits, choose_arguments(problem, router_, logits)});
    case StageKind::assign:
      return backend.assign(assign_arguments(problem, router_));
    case StageKind::weigh:
      return backend.weigh(weigh_arguments(problem, router_));
    case StageKind::collect:
      return backend.collect(collect_arguments(problem, router_));
    case StageKind::router_backward:
      return backend.router_backward(
          backward_arguments(problem, router_, logits, as<float>(Buffer::upstream),
                             as<float>(Buffer::ir_upstream), plan_.problem.normaliser, gradient));
    case StageKind::narrow:
      return backend.narrow(gradient, memory_[Buffer::narrow_logit_gradient], tokens * experts);
    case StageKind::gate_by_weight:
      return backend.gemm(
          {.m = experts, .n = hidden, .k = tokens, .left_transposed = true, .wide = true}, narrow,
          memory_[Buffer::x], memory_[Buffer::gate_weight_gradient]);
    case StageKind::gate_by_input:
      return backend.gemm({.m = tokens, .n = hidden, .k = experts, .accumulates = true}, narrow,
                          memory_[Buffer::gate_weight], memory_[Buffer::x_gradient]);
    default:
      break;
  }
  throw_not_of_group(kind, "the router's");
}

void LayerRun::run_index(StageKind kind, LayerBackend& backend) {
  const bool residual = plan_.problem.residual;
  switch (kind) {
    case StageKind::permute:
      return backend.permute({.map = map(),
                              .row_vectors = row_vectors_,
                              .tokens = memory_[Buffer::x],
                              .rows = memory_[Buffer::rows],
                              .ir_rows = memory_[Buffer::ir_rows]});
    case StageKind::combine:
      return backend.combine({.map = map(),
                              .row_vectors = row_vectors_,
                              .weight = router_.weight,
                              .ir_weight = router_.ir_weight,
                              .rows = memory_[Buffer::returned],
                              .ir_rows = memory_[Buffer::ir_out],
                              .residual = residual ? memory_[Buffer::x] : nullptr,
                              .out = memory_[Buffer::out]});
    case StageKind::combine_backward:
      return backend.combine_backward({.map = map(),
                                       .row_vectors = row_vectors_,
                                       .weight = router_.weight,
                                       .ir_weight = router_.ir_weight,
                                       .rows = memory_[Buffer::returned],
                                       .ir_rows = memory_[Buffer::ir_out],
                                       .gradient = memory_[Buffer::out_gradient],
                                       .row_gradient = memory_[Buffer::returned_gradient],
                                       .ir_row_gradient = memory_[Buffer::ir_out_gradient],
                                       .upstream = as<float>(Buffer::upstream),
                                       .ir_upstream = as<float>(Buffer::ir_upstream)});
    case StageKind::permute_backward:
      return backend.combine({.map = map(),
                              .row_vectors = row_vectors_,
                              .rows = memory_[Buffer::rows_gradient],
                              .ir_rows = memory_[Buffer::ir_rows_gradient],
                              .residual = residual ? memory_[Buffer::out_gradient] : nullptr,
                              .out = memory_[Buffer::x_gradient]});
    default:
      break;
  }
  throw_not_of_group(kind, "the copies of rows by index");
}

// Where IR rows follow, the products leave their sum in `mixed` and `mixed_gradient`.
void LayerRun::run_einsum(StageKind kind, LayerBackend& backend) {
  const LayerProblem& problem = plan_.problem;
  const std::int64_t tokens = problem.router.tokens, slots = problem.slots();
  const std::int64_t hidden = problem.hidden;
  const void* dispatch = memory_[Buffer::dispatch_mask];
  const void* combine = memory_[Buffer::combine_mask];
  const auto product = [&](const void* mask, Buffer rows, Buffer result, Buffer residual) {
    if (problem.residual) {
      backend.copy(memory_[result], memory_[residual], plan_.bytes_of(residual));
    }
    backend.gemm({.m = tokens, .n = hidden, .k = slots, .accumulates = problem.residual}, mask,
                 memory_[rows], memory_[result]);
  };
  switch (kind) {
    case StageKind::dispatch_mask:
      return backend.one_hot({map(), nullptr, memory_[Buffer::dispatch_mask]});
    case StageKind::dispatch_product:
      return backend.gemm({.m = slots, .n = hidden, .k = tokens, .left_transposed = true}, dispatch,
                          memory_[Buffer::x], memory_[Buffer::rows]);
    case StageKind::combine_mask:
      return backend.one_hot({map(), router_.weight, memory_[Buffer::combine_mask]});
    case StageKind::combine_product:
      return product(combine, Buffer::returned, problem.rectified() ? Buffer::mixed : Buffer::out,
                     Buffer::x);
    case StageKind::mask_by_weight:
      return backend.gemm({.m = tokens, .n = slots, .k = hidden, .right_transposed = true},
                          memory_[Buffer::out_gradient], memory_[Buffer::returned],
                          memory_[Buffer::mask_gradient]);
    case StageKind::mask_by_input:
      return backend.gemm({.m = slots, .n = hidden, .k = tokens, .left_transposed = true}, combine,
                          memory_[Buffer::out_gradient], memory_[Buffer::returned_gradient]);
    case StageKind::read_mask:
      return backend.read_one_hot(
          {map(), memory_[Buffer::mask_gradient], as<float>(Buffer::upstream)});
    case StageKind::dispatch_by_input:
      return product(dispatch, Buffer::rows_gradient,
                     problem.rectified() ? Buffer::mixed_gradient : Buffer::x_gradient,
                     Buffer::out_gradient);
    default:
      break;
  }
  throw_not_of_group(kind, "the products with masks");
}

void LayerRun::run_ir(StageKind kind, LayerBackend& backend) {
  const LayerProblem& problem = plan_.problem;
  switch (kind) {
    case StageKind::gather_ir:
      return backend.permute({.map = ir_map(),
                              .row_vectors = row_vectors_,
                              .tokens = memory_[Buffer::x],
                              .ir_rows = memory_[Buffer::ir_rows]});
    case StageKind::ir_counts: {
      const auto begin = backend.read_counts(router_.ir_begin, problem.local_experts() + 1);
      std::vector<std::int64_t> rows;
      for (std::size_t at = 1; at < begin.size(); ++at) rows.push_back(begin[at] - begin[at - 1]);
      ir_ffn_ = experts::plan_ffn(plan_.ffn.shape, experts::RowLayout::ragged(rows),
                                  {true, problem.grouped});
      return;
    }
    case StageKind::ir_experts:
      return experts::run_forward(ir_ffn_.value(), ir_tensors(), backend);
    case StageKind::ir_experts_backward:
      // Adds to the weights' gradients that the padded rows have written.
      return experts::run_backward(ir_ffn_.value(), ir_tensors(), backend);
    case StageKind::blend:
      return backend.combine({.map = ir_map(),
                              .row_vectors = row_vectors_,
                              .ir_weight = router_.ir_weight,
                              .ir_rows = memory_[Buffer::ir_out],
                              .residual = memory_[Buffer::mixed],
                              .out = memory_[Buffer::out]});
    case StageKind::blend_backward:
      return backend.combine_backward({.map = ir_map(),
                                       .row_vectors = row_vectors_,
                                       .ir_weight = router_.ir_weight,
                                       .ir_rows = memory_[Buffer::ir_out],
                                       .gradient = memory_[Buffer::out_gradient],
                                       .ir_row_gradient = memory_[Buffer::ir_out_gradient],
                                       .ir_upstream = as<float>(Buffer::ir_upstream)});
    case StageKind::blend_gradient:
      return backend.combine({.map = ir_map(),
                              .row_vectors = row_vectors_,
                              .ir_rows = memory_[Buffer::ir_rows_gradient],
                              .residual = memory_[Buffer::mixed_gradient],
                              .out = memory_[Buffer::x_gradient]});
    default:
      break;
  }
  throw_not_of_group(kind, "the rectified rows'");
}

}  // namespace moesim::kernels::layer
