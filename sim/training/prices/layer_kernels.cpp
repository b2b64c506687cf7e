#include "sim/training/prices/layer_kernels.hpp"

#include <algorithm>
#include <cmath>

#include "sim/base/units.hpp"
#include "sim/profile/moe_exchange_law.hpp"
#include "sim/training/prices/dispatched_rows.hpp"
#include "sim/training/prices/linear_attention_prices.hpp"

namespace moesim::training {
namespace {

using model::AttentionKind;
using profile::MemoryKernel;
// Longer sums of a weight gradient are priced in pieces: the curves end before.
constexpr std::int64_t longest_sum = 262'144;
// Bytes moved per element of the logits: a fused cross entropy reads them twice and writes their
// gradient, which its backward pass scales (Transformer Engine), 6 and 4 bytes, at half the speed
// of other kernels (0.3 of the peak bandwidth on B200, published by SimuMax).
constexpr double loss_bytes = 12;
constexpr double loss_backward_bytes = 8;
// Bytes moved by biases of the experts' second product, per element of its output: Megatron-Core
// adds them expert by expert in elementwise operations in fp32, weighted by the probabilities, and
// concatenates (megatron/core/transformer/moe/experts.py, _apply_bias); counted in that code.
constexpr double bias_bytes = 28;
constexpr double bias_backward_bytes = 40;
// Both halves that enter a gated activation, clamped: per element of a half, forward two clamps and
// a concatenation, each reading and writing bf16; backward the gradient of the clamps (gradient and
// input read, one written) and of the split, which concatenates (megatron/core/fusions/
// fused_bias_geglu.py, weighted_bias_quick_geglu_impl; counted in that code).
constexpr double clamp_bytes = 8;
constexpr double clamp_backward_bytes = 10;
// An activation without a gate (GELU) is an operation of PyTorch, apart from the routes' weights,
// fp32: per cell, Megatron-Core multiplies by them in fp32 and casts the product back, and backward
// casts the gradient, makes both gradients of the multiplication in fp32, casts one and adds the
// other up over the row (the same file, TEGroupedMLP.forward; counted in that code).
constexpr double weighing_bytes = 12;
constexpr double weighing_backward_bytes = 34;
// A gate on the output of attention, per element: its sigmoid and the product, output and gate
// read, one written; backward those two and the gradient read, two written.
constexpr double gate_bytes = 6;
constexpr double gate_backward_bytes = 10;
std::int64_t whole(double value) { return std::max<std::int64_t>(1, std::llround(value)); }

// Whether products read one copy by row and by column: with one scale per tensor, but on Hopper.
bool reads_one_copy(const model::StateRules& states) {
  return model::gemm_weight_bytes(states.precision, states.transposed_copies) ==
         model::element_bytes(states.precision);
}

// Whether rows come to experts in the format of the products, which they then are cast to before.
bool brings_low_rows(const TrainingJob& job) { return job.dispatched_element_bytes() < bf16_bytes; }

}  // namespace

LayerKernels::LayerKernels(const TrainingJob& job)
    : job_(job), kernels_(job), forced_(forced_load(job)) {}

Passes LayerKernels::embedding() const {
  const double hidden_bytes =
      bf16_bytes * job_.tokens_per_rank() * static_cast<double>(job_.model->hidden);
  Passes passes;
  add_memory(passes, TrainingPart::head, 2 * hidden_bytes, 3 * hidden_bytes,
             MemoryKernel::streaming);
  return passes;
}

Passes LayerKernels::head() const {
  const model::Model& model = *job_.model;
  const int tensor = job_.layout.sizes.tensor;
  const double logits = job_.tokens() * static_cast<double>(model.vocabulary) / tensor;
  Passes passes;
  add_product(passes, TrainingPart::head,
              {.m = job_.tokens(),
               .n = model.vocabulary / tensor,
               .k = model.hidden,
               .is_wide = !job_.low_precision_head});
  add_memory(passes, TrainingPart::head, loss_bytes * logits, loss_backward_bytes * logits,
             MemoryKernel::streaming);
  return passes;
}

Passes LayerKernels::prediction() const {
  const std::int64_t hidden = job_.model->hidden;
  const double token_bytes = bf16_bytes * job_.tokens_per_rank() * static_cast<double>(hidden);
  Passes passes = embedding();
  // The norms of the model's hidden vectors, of the embedded tokens and of the layer's output.
  for (int norm = 0; norm < 3; ++norm) {
    add_memory(passes, TrainingPart::head, 2 * token_bytes, 4 * token_bytes,
               MemoryKernel::normalization);
  }
  // The projection has all tokens of the tensor ranks, and its outputs divided among them.
  add_product(passes, TrainingPart::head,
              {.m = job_.tokens(), .n = hidden / job_.layout.sizes.tensor, .k = 2 * hidden});
  return passes;
}

void LayerKernels::add_product(Passes& passes, TrainingPart part, const Product& product) const {
  const auto& [m, n, k, copies, is_wide, input_casts, gradient_casts] = product;
  const std::int64_t rows = whole(m);
  // Casts of the input, and of the gradient that comes back, by row and by column.
  if (!is_wide) {
    const auto bytes = [&, m = m](int asked, std::int64_t columns) {
      const int directions = asked - (reads_one_copy(job_.states) ? 1 : 0);
      if (directions <= 0) return 0.0;
      return model::quantize_bytes(job_.states.precision, directions) * m *
             static_cast<double>(columns);
    };
    add_memory(passes, part, bytes(input_casts, k), bytes(gradient_casts, n),
               MemoryKernel::streaming);
  }
  passes.forward[at(part)] += kernels_.product_us({rows, n, k, copies, is_wide});
  passes.input_gradient[at(part)] += kernels_.product_us({rows, k, n, copies, is_wide});
  const std::int64_t pieces = (rows + longest_sum - 1) / longest_sum;
  const KernelPrices::Product by_weight = {
      std::min(n, k), std::max(n, k), (rows + pieces - 1) / pieces, copies, is_wide, true};
  // Added to the gradients so far: read and written. The curve's product writes one in bf16.
  const double weights = static_cast<double>(n * k);
  const double added = 2 * job_.states.gradient_bytes * copies * weights - bf16_bytes * weights;
  passes.weight_gradient[at(part)] += static_cast<double>(pieces) * kernels_.product_us(by_weight) +
                                      memory_us(added, MemoryKernel::streaming);
}

void LayerKernels::add_memory(Passes& passes, TrainingPart part, double forward, double backward,
                              MemoryKernel kind) const {
  passes.forward[at(part)] += memory_us(forward, kind);
  passes.input_gradient[at(part)] += memory_us(backward, kind);
}

Passes LayerKernels::core_attention(AttentionKind attention) const {
  if (attention == AttentionKind::linear) return linear_attention_passes(job_, kernels_);
  Passes passes;
  passes.forward[at(TrainingPart::attention)] = kernels_.core_attention_us(false);
  passes.input_gradient[at(TrainingPart::attention)] = kernels_.core_attention_us(true);
  return passes;
}

Passes LayerKernels::projections(AttentionKind attention) const {
  const model::Model& model = *job_.model;
  Passes passes;
  for (const model::Projection& projection : attention == AttentionKind::linear
                                                 ? model.linear_projections()
                                                 : model.attention_projections()) {
    add_projection(passes, projection);
  }
  return passes;
}

void LayerKernels::add_projection(Passes& passes, const model::Projection& projection) const {
  const int tensor = job_.layout.sizes.tensor;
  // Down-projections of latent attention are not divided: each rank computes its own tokens.
  const bool whole_matrix = projection.name == "q_down" || projection.name == "kv_down";
  const bool by_row = projection.name == "out";
  const std::int64_t n = whole_matrix || by_row ? projection.n : projection.n / tensor;
  const std::int64_t k = by_row ? projection.k / tensor : projection.k;
  add_product(passes, TrainingPart::attention,
              {.m = whole_matrix ? job_.tokens_per_rank() : job_.tokens(), .n = n, .k = k});
}

Passes LayerKernels::norms() const {
  const double token_bytes =
      bf16_bytes * job_.tokens_per_rank() * static_cast<double>(job_.model->hidden);
  Passes passes;
  for (int block = 0; block < 2; ++block) {
    add_memory(passes, TrainingPart::attention, 2 * token_bytes, 4 * token_bytes,
               MemoryKernel::normalization);
  }
  return passes;
}

double LayerKernels::rotary_bytes() const {
  const model::Model& model = *job_.model;
  const std::int64_t turned = model.latent ? (model.heads + 1) * model.latent->rope_dim
                                           : (model.heads + model.kv_heads) * model.head_dim;
  return bf16_bytes * job_.tokens() * static_cast<double>(turned) / job_.layout.sizes.tensor;
}

Passes LayerKernels::elementwise(AttentionKind attention) const {
  const double token_bytes =
      bf16_bytes * job_.tokens_per_rank() * static_cast<double>(job_.model->hidden);
  Passes passes;
  for (int block = 0; block < 2; ++block) {
    add_memory(passes, TrainingPart::attention, 3 * token_bytes, 3 * token_bytes,
               MemoryKernel::streaming);
  }
  if (attention == AttentionKind::softmax) add_softmax_elementwise(passes);
  return passes;
}

void LayerKernels::add_softmax_elementwise(Passes& passes) const {
  const model::Model& model = *job_.model;
  const double rotated = rotary_bytes();
  add_memory(passes, TrainingPart::attention, 2 * rotated, 2 * rotated, MemoryKernel::streaming);
  // Norms inside attention: of queries and keys, or of the low-rank ones.
  const double normed =
      model.latent ? job_.tokens_per_rank() *
                         static_cast<double>(model.latent->query_rank + model.latent->kv_rank)
      : model.query_key_norm ? rotated / bf16_bytes
                             : 0;
  add_memory(passes, TrainingPart::attention, 2 * bf16_bytes * normed, 4 * bf16_bytes * normed,
             MemoryKernel::normalization);
  if (!model.output_gate) return;
  const double gated = job_.tokens() * static_cast<double>(model.heads * model.value_dim()) /
                       job_.layout.sizes.tensor;
  add_memory(passes, TrainingPart::attention, gate_bytes * gated, gate_backward_bytes * gated,
             MemoryKernel::streaming);
}

Passes LayerKernels::activation(TrainingPart part, double rows, std::int64_t inner) const {
  const double matrices_up = job_.model->gated ? 2 : 1;
  const double cells = bf16_bytes * rows * static_cast<double>(inner);
  const double forward = (matrices_up + 1) * cells;
  const double backward = (2 * matrices_up + 1) * cells;
  Passes passes;
  if (part == TrainingPart::experts && !job_.model->gated) {
    passes.forward[at(part)] +=
        kernels_.elementwise_us(forward + weighing_bytes / bf16_bytes * cells);
    passes.input_gradient[at(part)] +=
        kernels_.elementwise_us(backward + weighing_backward_bytes / bf16_bytes * cells);
  } else {
    add_memory(passes, part, forward, backward, MemoryKernel::activation);
  }
  if (part == TrainingPart::experts && job_.model->moe->clamped) {
    const double entering = matrices_up * rows * static_cast<double>(inner);
    add_memory(passes, part, clamp_bytes * entering, clamp_backward_bytes * entering,
               MemoryKernel::streaming);
  }
  return passes;
}

Passes LayerKernels::ffn(TrainingPart part, double rows, std::int64_t inner, double copies) const {
  const model::Model& model = *job_.model;
  // The activation and the casts on both sides of it are in the epilogues of fused products.
  const bool is_fused = part == TrainingPart::experts && job_.fused_experts;
  // Rows that come in the format of the products are cast by column alone.
  const int outer = part == TrainingPart::experts && brings_low_rows(job_) ? 1 : 2;
  const int inner_casts = is_fused ? 0 : 2;
  Passes passes = is_fused ? Passes() : activation(part, rows, inner);
  add_product(passes, part,
              {.m = rows,
               .n = (model.gated ? 2 : 1) * inner,
               .k = model.hidden,
               .copies = copies,
               .input_casts = outer,
               .gradient_casts = inner_casts});
  add_product(passes, part,
              {.m = rows,
               .n = model.hidden,
               .k = inner,
               .copies = copies,
               .input_casts = inner_casts,
               .gradient_casts = outer});
  return passes;
}

MoeLoad LayerKernels::given_load() const {
  const bool pads = job_.capacity_factor > 0;
  MoeLoad load{.computed = pads ? job_.capacity_factor : forced_.computed,
               .exchanged = pads ? job_.capacity_factor : forced_.exchanged};
  if (!job_.dispatcher || job_.exchanging_ranks() < 2) return load;
  // Dispatchers send the rows that capacity keeps, without padding.
  const double kept = pads ? std::min(1.0, job_.capacity_factor) : 1;
  load.exchanged = kept * (pads ? 1 : forced_.exchanged);
  load.dispatched = DispatchedRows(job_).load_of(pads ? 1 : forced_.computed, kept);
  return load;
}

double LayerKernels::expert_rows(const MoeLoad& load) const {
  return load.computed * job_.balanced_rows() * job_.layout.sizes.expert_tensor;
}

// NCCL's all-to-all sends what a rank's own tokens choose: with padded blocks all their slots, else
// no more rows than routes, however many come from other ranks. A dispatcher brings copies of
// tokens, whose rows are made where their experts are, as are those of gathered tokens.
double LayerKernels::permuted_rows(const MoeLoad& load) const {
  if (job_.exchanges_slices()) return expert_rows(load);
  const bool pads = job_.routing ? job_.routing->router.pads_exchange() : job_.capacity_factor > 0;
  return job_.balanced_rows() * (pads ? load.computed : std::min(load.computed, 1.0));
}

// The tokens of a rank's own, or the copies that a dispatcher brings, or that are read of gathered
// ones: one of a token to each rank that has any of its experts, no more than rows. Kernels that
// pad rows order them as they come and read no copies for it: they keep the price of the rank's own
// tokens.
double LayerKernels::permuted_tokens(const MoeLoad& load) const {
  const double tokens = job_.tokens_per_rank();
  const int holders = job_.layout.sizes.expert;
  const profile::Dispatcher* const dispatcher = job_.dispatcher.get();
  if (!job_.exchanges_slices() || holders < 2) return tokens;
  if (dispatcher != nullptr && dispatcher->pads_rows) return tokens;
  if (dispatcher != nullptr && dispatcher->sent == profile::SentOnce::per_expert) return tokens;
  const profile::MoeTraffic traffic = even_traffic(job_);
  const double copies = tokens * traffic.slices * profile::distinct_places(traffic, holders);
  return std::min(load.computed * copies, expert_rows(load));
}

Passes LayerKernels::experts(const MoeLoad& load) const {
  const model::MoeBlock& moe = *job_.model->moe;
  const parallel::ParallelLayout& sizes = job_.layout.sizes;
  const double rows = expert_rows(load);
  Passes passes = ffn(TrainingPart::experts, rows, moe.expert_ffn / sizes.expert_tensor,
                      static_cast<double>(moe.experts + job_.redundant_experts) / sizes.expert);
  if (moe.biased && !job_.fused_experts) {
    const double cells = rows * static_cast<double>(job_.model->hidden);
    add_memory(passes, TrainingPart::experts, bias_bytes * cells, bias_backward_bytes * cells,
               MemoryKernel::streaming);
  }
  return passes;
}

Passes LayerKernels::routing(const MoeLoad& load) const {
  const model::Model& model = *job_.model;
  const double tokens = job_.tokens_per_rank();
  const double rows = expert_rows(load);
  Passes passes;
  add_product(passes, TrainingPart::router,
              {.m = tokens, .n = model.moe->experts, .k = model.hidden, .is_wide = true});
  const double scores = fp32_bytes * tokens * model.moe->experts;
  add_memory(passes, TrainingPart::router, 4 * scores, 4 * scores, MemoryKernel::streaming);
  if (brings_low_rows(job_)) {
    const double cast = model::quantize_bytes(job_.states.precision, 1) * tokens *
                        static_cast<double>(model.hidden);
    add_memory(passes, TrainingPart::router, cast, cast, MemoryKernel::streaming);
  }
  const double from = permuted_tokens(load);
  const double home = job_.gathers_tokens ? job_.exchanging_ranks() * tokens : from;
  const double moves = kernels_.rows_moved_us(from, permuted_rows(load), home);
  // Rows that came by source rank are sorted by expert, and back, if they are of several.
  const parallel::ParallelLayout& sizes = job_.layout.sizes;
  const bool sorts = !job_.exchanges_slices() && sizes.expert * sizes.expert_tensor > 1 &&
                     job_.held_experts() > sizes.expert;
  const double sorting =
      sorts ? 2 * memory_us(2 * bf16_bytes * rows * static_cast<double>(model.hidden),
                            MemoryKernel::streaming)
            : 0;
  passes.forward[at(TrainingPart::router)] += moves + sorting;
  passes.input_gradient[at(TrainingPart::router)] += moves + sorting;
  return passes;
}

}  // namespace moesim::training
