#include "sim/step/kernels/operation_kernels.hpp"

#include <utility>

#include "sim/step/program/message_bytes.hpp"

namespace moesim::step {
namespace {

using routing::IrCompute;

Kernels operator+(Kernels first, Kernels second) {
  for (Kernel& kernel : second) first.push_back(std::move(kernel));
  return first;
}

// A pre-norm residual block around `inside`.
Kernels block(const KernelPricer& pricer, Kernels inside, Pass pass) {
  return pricer.norm(pass) + std::move(inside) + pricer.residual(pass);
}

// Includes the norm before it.
Kernels after_norm(const KernelPricer& pricer, Kernels kernels, Pass pass) {
  return pass == Pass::forward ? pricer.norm(pass) + std::move(kernels)
                               : std::move(kernels) + pricer.norm(pass);
}

// Self-attention and, in a decoder with an encoder, cross-attention to the whole encoder output,
// which is as long as the decoder's input.
Kernels attention(const StepOperation& operation, const KernelPricer& pricer) {
  const Pass pass = operation.pass;
  Kernels kernels = block(pricer, pricer.attention(pass, operation.causal), pass);
  if (!operation.cross_attends) return kernels;
  return std::move(kernels) + block(pricer, pricer.attention(pass, false), pass);
}

// Includes what follows the combination: BASE's gated output and the residual.
Kernels combine(Pass pass, const Amount& amount, const KernelPricer& pricer) {
  const std::int64_t rows = amount.padded ? pricer.scenario().experts * amount.rows : amount.rows;
  Kernels kernels = pricer.experts_move_rows() ? Kernels{}
                    : amount.padded            ? pricer.combine(pass, amount.rows)
                                               : pricer.combine_rows(pass, amount.rows);
  if (pricer.scenario().router.kind->gated_output) {
    kernels = std::move(kernels) + pricer.gated_residual(pass, rows);
  }
  return std::move(kernels) + pricer.residual(pass);
}

// Together with the experts' products: the same calls with the IR rows appended, minus the calls
// without them.
Kernels rectify_with_experts(Pass pass, const Amount& amount, const KernelPricer& pricer) {
  if (amount.ir_rows == 0) return {};
  const scenario::Scenario& scenario = pricer.scenario();
  const std::int64_t local = scenario.experts / scenario.expert_parallel;
  Kernels with = pricer.experts(pass, amount.rows, (amount.ir_rows + local - 1) / local);
  Kernels without = pricer.experts(pass, amount.rows, 0);
  for (Kernel& kernel : without) kernel.count = -kernel.count;
  return std::move(with) + std::move(without) + pricer.rectify_moves(pass, amount.ir_rows);
}

Kernels phase(const StepOperation& operation, const Amount& amount, const KernelPricer& pricer) {
  const Pass pass = operation.pass;
  const std::int64_t rows = amount.rows;
  switch (operation.phase) {
    case MoePhase::route:
      return after_norm(pricer, pricer.router(pass), pass);
    case MoePhase::dispatch:
      if (pricer.experts_move_rows()) return {};
      return amount.padded ? pricer.dispatch(pass, rows) : pricer.dispatch_rows(rows);
    case MoePhase::shared_expert:
      return pricer.shared_expert(pass);
    case MoePhase::sort:
    case MoePhase::unsort:
      return pricer.sort_rows(amount.padded ? pricer.scenario().experts * rows : rows);
    case MoePhase::experts:
      return amount.padded ? pricer.experts(pass, rows, 0) : pricer.expert_rows(pass, rows);
    case MoePhase::rectify:
      return pricer.scenario().router.ir_compute == IrCompute::grouped
                 ? rectify_with_experts(pass, amount, pricer)
                 : pricer.rectify(pass, amount.ir_rows);
    case MoePhase::combine:
      return combine(pass, amount, pricer);
    case MoePhase::shuffle:
    case MoePhase::announce:
    case MoePhase::dispatch_exchange:
    case MoePhase::combine_exchange:
    case MoePhase::unshuffle:
      break;  // operations with other work
  }
  return {};
}

Kernels exchange(const KernelPricer& pricer, std::span<const int> members, double bytes,
                 const char* label) {
  if (bytes == 0) return {};
  return {pricer.exchange(profile::Collective::all_to_all, members, bytes, label)};
}

}  // namespace

Kernels kernels_of(const StepOperation& operation, const Amount& amount, const KernelPricer& pricer,
                   std::span<const int> members) {
  const scenario::Scenario& scenario = pricer.scenario();
  switch (operation.work) {
    case Work::embedding:
      return pricer.embedding(operation.pass);
    case Work::attention:
      return attention(operation, pricer);
    case Work::dense_ffn:
      return block(pricer, pricer.dense_ffn(operation.pass), operation.pass);
    case Work::head:
      return after_norm(pricer, pricer.head(operation.pass), operation.pass);
    case Work::phase:
      return phase(operation, amount, pricer);
    case Work::shuffle_rows:
      return pricer.dispatch_rows(scenario.tokens_per_gpu);
    case Work::host_read:
      return pricer.host_read();
    case Work::accumulate_gradients:
      return pricer.accumulate_gradients(operation.parameters);
    case Work::optimizer:
      return pricer.optimizer(operation.parameters);
    case Work::collective:
      return {pricer.exchange(operation.collective, members, operation.bytes, operation.label)};
    case Work::exchange_rows:
      return exchange(pricer, members, dispatch_bytes(scenario, amount.rows), "all-to-all");
    case Work::exchange_probabilities: {
      const double share = probability_bytes / row_bytes(scenario, 1);
      return exchange(pricer, members, dispatch_bytes(scenario, amount.rows) * share,
                      "all-to-all of probabilities");
    }
    case Work::exchange_rectified:
      return exchange(pricer, members, row_bytes(scenario, amount.ir_rows),
                      "all-to-all of rectified rows");
  }
  return {};
}

}  // namespace moesim::step
