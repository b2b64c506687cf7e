#include "sim/step/kernels/kernels.hpp"

#include <algorithm>
#include <utility>

#include "sim/base/units.hpp"
#include "sim/profile/latent_share.hpp"
#include "sim/step/kernels/kernel_list.hpp"

namespace moesim::step {
namespace {

// Bytes that the einsum backend moves in addition to its GEMMs, counted in DeepSpeed's top1gating,
// top2gating and MOELayer (sharded_moe.py, 2023). Per element of a dense [S, E, C] tensor:
//   per choice   the fp32 product of gates and one-hot locations is written (4); every further
//                choice adds it up (reads 8, writes 4)
//   dispatch     the boolean mask (reads 4, writes 1) and its bf16 copy (1, 2)
//   combine      the fp32 weights in bf16 (reads 4, writes 2)
// and per choice and element of [S, C] the one-hot locations: int64 written (8), then in fp32
// (8, 4). Backward: the gradient back in fp32 (2, 4), and per choice its product with the locations
// and the sum over C (4, 4, 4).
constexpr double mask_bytes_product = 4;
constexpr double mask_bytes_sum = 8 + 4;
constexpr double mask_bytes_dispatch = 4 + 1 + 1 + 2;
constexpr double mask_bytes_combine = 4 + 2;
constexpr double one_hot_bytes = 8 + 8 + 4;
constexpr double mask_bytes_combine_backward = 2 + 4;
constexpr double mask_bytes_backward_per_choice = 12;

// IR blended by tensor operations over all tokens, per element of [S, h]: zeros to scatter the IR
// rows into (2), two products with fp32 weights (2 + 4 each), their sum (8, 4), the division by the
// sum of gates (4, 4), back to bf16 (4, 2). Backward half as much again. Assumed: the paper's code
// is not public; the formula is its equation for IR.
constexpr double eager_blend_bytes = 2 + 2 * 6 + 12 + 8 + 6;

// Adam on one parameter with fp32 states: reads the gradient (2), master weight, two moments
// (3 x 4), writes the three and the bf16 weight (3 x 4 + 2).
constexpr double adam_bytes = 2 + 12 + 12 + 2;

}  // namespace

KernelPricer::KernelPricer(const scenario::Scenario& scenario, std::int64_t tokens)
    : scenario_(scenario),
      profile_(*scenario.profile),
      model_(*scenario.model),
      tokens_(tokens),
      network_(scenario.profile, scenario.cluster) {}

std::int64_t KernelPricer::experts_per_rank() const {
  return scenario_.experts / scenario_.expert_parallel;
}

Kernels KernelPricer::norm(Pass pass) const {
  List list(profile_, pass);
  list.memory_pass("norm", 2 * token_bytes(), 4 * token_bytes(),
                   profile::MemoryKernel::normalization);
  return list.take();
}

Kernels KernelPricer::residual(Pass pass) const {
  List list(profile_, pass);
  list.memory_pass("residual", 3 * token_bytes(), 3 * token_bytes());
  return list.take();
}

Kernels KernelPricer::attention(Pass pass, bool causal) const {
  List list(profile_, pass);
  for (const model::Projection& projection : model_.attention_projections()) {
    list.gemm("attention " + projection.name, {tokens_, projection.n, projection.k});
  }
  // Latent attention applies rotary embedding to a part of each query head and to one key that all
  // heads share.
  const std::int64_t turned = model_.latent ? (model_.heads + 1) * model_.latent->rope_dim
                                            : (model_.heads + model_.kv_heads) * model_.head_dim;
  const double rotated = bf16_bytes * static_cast<double>(tokens_) * static_cast<double>(turned);
  list.memory_pass("rotary", 2 * rotated, 2 * rotated);
  // Norms of queries and keys, or of the low-rank ones.
  const double normed =
      model_.latent ? row_bytes(tokens_) / static_cast<double>(model_.hidden) *
                          static_cast<double>(model_.latent->query_rank + model_.latent->kv_rank)
      : model_.query_key_norm ? rotated
                              : 0;
  list.memory_pass("query and key norm", 2 * normed, 4 * normed,
                   profile::MemoryKernel::normalization);
  // The curves are for causal attention with queries, keys and values of the same width. Other
  // shapes are scaled by their FLOPs: twice as many without the causal mask, and proportional to
  // the widths.
  const double widths = static_cast<double>(model_.query_key_dim() + model_.value_dim()) /
                        static_cast<double>(2 * model_.head_dim);
  const double share = model_.latent ? profile::latent_share(pass == Pass::backward) : 1;
  const double calls = (causal ? 1 : 2) * widths * share;
  const auto attend = [&](std::int64_t batch, std::int64_t length) {
    if (batch == 0 || length == 0) return;
    profile::Estimate estimate = profile_.attention(
        {batch, length, model_.heads, model_.kv_heads, model_.head_dim}, pass == Pass::backward);
    if (calls != 1 || model_.latent) {
      estimate.origin = std::max(estimate.origin, profile::Origin::derived);
    }
    list.add(pass == Pass::forward ? "attention" : "attention backward", KernelClass::attention,
             estimate, calls);
  };
  attend(tokens_ / scenario_.sequence_length, scenario_.sequence_length);
  attend(1, tokens_ % scenario_.sequence_length);
  return list.take();
}

bool KernelPricer::are_batched() const {
  return scenario_.expert_products == scenario::ExpertProducts::batched;
}

bool KernelPricer::are_fused() const {
  return scenario_.expert_products == scenario::ExpertProducts::fused;
}

bool KernelPricer::experts_move_rows() const {
  return are_fused() && !scenario_.router.mixes_tokens() &&
         (scenario_.expert_parallel == 1 || scenario_.dispatcher != nullptr);
}

void KernelPricer::fused_ffn(List& list, std::int64_t rows) const {
  if (rows == 0) return;
  list.add("fused experts", KernelClass::gemm,
           profile_.expert_ffn(rows, model_.hidden, model_.moe->expert_ffn, experts_per_rank()));
}

// Fused, it streams, unless the profile's own activation kernel is faster than that.
profile::MemoryKernel KernelPricer::activation_kernel(double bytes) const {
  using profile::MemoryKernel;
  if (scenario_.fusion == scenario::Fusion::eager) return MemoryKernel::activation;
  return profile_.memory(bytes, MemoryKernel::streaming).time_us <
                 profile_.memory(bytes, MemoryKernel::activation).time_us
             ? MemoryKernel::streaming
             : MemoryKernel::activation;
}

void KernelPricer::gated_ffn(List& list, Pass pass, std::int64_t rows, std::int64_t inner,
                             double count, std::int64_t experts) const {
  if (rows == 0) return;
  const std::int64_t matrices_up = model_.gated ? 2 : 1;
  const double cells = bf16_bytes * static_cast<double>(rows * inner);
  list.gemm("ffn up", {rows, matrices_up * inner, model_.hidden, experts}, count);
  // Forward: reads the gate and up halves, writes their product; backward: reads both and the
  // gradient, writes two gradients.
  const double forward = static_cast<double>(matrices_up) + 1;
  const double bytes = cells * (pass == Pass::forward ? forward : 2 * forward - 1);
  list.memory(pass == Pass::forward ? "activation" : "activation backward", bytes,
              activation_kernel(bytes), count);
  list.gemm("ffn down", {rows, model_.hidden, inner, experts}, count);
}

void KernelPricer::expert_ffns(List& list, Pass pass, std::int64_t rows) const {
  const std::int64_t local = experts_per_rank();
  if (are_fused()) {
    fused_ffn(list, rows * local);
  } else if (are_batched()) {
    gated_ffn(list, pass, rows * local, model_.moe->expert_ffn, 1, local);
  } else {
    gated_ffn(list, pass, rows, model_.moe->expert_ffn, static_cast<double>(local));
  }
}

Kernels KernelPricer::dense_ffn(Pass pass) const {
  List list(profile_, pass);
  gated_ffn(list, pass, tokens_, model_.ffn, 1);
  return list.take();
}

// Dense tensors whose sum is the mask: one per choice, or one in total where experts choose tokens.
double KernelPricer::mask_choices() const {
  const routing::RouterConfig& router = scenario_.router;
  return router.kind->one_mask ? 1 : router.choices();
}

Kernels KernelPricer::dispatch_einsum(Pass pass, std::int64_t capacity) const {
  List list(profile_, pass);
  const std::int64_t slots = scenario_.experts * capacity;
  const double mask = static_cast<double>(tokens_) * static_cast<double>(slots);
  if (pass == Pass::forward) {
    const double choices = mask_choices();
    const double one_hot = one_hot_bytes / scenario_.experts;
    list.memory("einsum mask",
                mask * (choices * (mask_bytes_product + one_hot) + (choices - 1) * mask_bytes_sum +
                        mask_bytes_dispatch),
                profile::MemoryKernel::streaming, 1, KernelClass::mask);
    list.add("einsum dispatch", KernelClass::einsum, profile_.gemm(slots, model_.hidden, tokens_));
  } else {
    // Only the gradient of the tokens: the mask itself has none.
    list.add("einsum dispatch by input", KernelClass::einsum,
             profile_.gemm(tokens_, model_.hidden, slots));
  }
  return list.take();
}

// The padding that a GPU without tokens sends in a padded exchange.
Kernels KernelPricer::zero_rows(std::int64_t rows) const {
  List list(profile_, Pass::forward);
  list.memory("empty rows", row_bytes(rows));
  return list.take();
}

Kernels KernelPricer::dispatch(Pass pass, std::int64_t capacity) const {
  if (capacity == 0) return {};
  if (tokens_ == 0) {
    return pass == Pass::forward ? zero_rows(scenario_.experts * capacity) : Kernels{};
  }
  if (scenario_.router.mixes_tokens()) return mix_slots(pass);
  if (scenario_.dispatch == scenario::Dispatch::einsum) return dispatch_einsum(pass, capacity);
  return dispatch_rows(scenario_.experts * capacity);
}

// Gather forward, scatter-add backward: the same bytes.
Kernels KernelPricer::dispatch_rows(std::int64_t rows) const {
  List list(profile_, Pass::forward);
  if (rows > 0) {
    list.add("permute", KernelClass::memory, profile_.permute_rows(tokens_, rows, model_.hidden));
  }
  return list.take();
}

Kernels KernelPricer::combine_einsum(Pass pass, std::int64_t capacity) const {
  List list(profile_, Pass::forward);
  const std::int64_t slots = scenario_.experts * capacity;
  const double mask = static_cast<double>(tokens_) * static_cast<double>(slots);
  if (pass == Pass::forward) {
    list.memory("einsum weights", mask * mask_bytes_combine, profile::MemoryKernel::streaming, 1,
                KernelClass::mask);
    list.add("einsum combine", KernelClass::einsum, profile_.gemm(tokens_, model_.hidden, slots));
  } else {
    list.add("einsum combine by weight", KernelClass::einsum,
             profile_.gemm(tokens_, slots, model_.hidden));
    list.add("einsum combine by input", KernelClass::einsum,
             profile_.gemm(slots, model_.hidden, tokens_));
    list.memory(
        "einsum weights backward",
        mask * (mask_bytes_combine_backward + mask_bytes_backward_per_choice * mask_choices()),
        profile::MemoryKernel::streaming, 1, KernelClass::mask);
  }
  return list.take();
}

Kernels KernelPricer::combine(Pass pass, std::int64_t capacity) const {
  if (capacity == 0) return {};
  if (tokens_ == 0) {
    return pass == Pass::backward ? zero_rows(scenario_.experts * capacity) : Kernels{};
  }
  if (scenario_.router.mixes_tokens()) return unmix_slots(pass);
  if (scenario_.dispatch == scenario::Dispatch::einsum) return combine_einsum(pass, capacity);
  return combine_rows(pass, scenario_.experts * capacity);
}

Kernels KernelPricer::combine_rows(Pass pass, std::int64_t rows) const {
  List list(profile_, pass);
  if (rows == 0) return list.take();
  // Backward reads the gradient of the tokens and the rows (for the gradient of their weights) and
  // writes the gradient of the rows; where the experts apply the weights, as in fused libraries, it
  // is a gather.
  const bool weighs = pass == Pass::backward && scenario_.fusion == scenario::Fusion::eager;
  list.add(pass == Pass::forward ? "combine" : "combine backward", KernelClass::memory,
           profile_.combine_rows(tokens_, weighs ? 2 * rows : rows, model_.hidden));
  return list.take();
}

Kernels KernelPricer::expert_rows(Pass pass, std::int64_t rows) const {
  List list(profile_, pass);
  if (are_fused()) {
    fused_ffn(list, rows);
  } else {
    gated_ffn(list, pass, rows, model_.moe->expert_ffn, 1, are_batched() ? experts_per_rank() : 1);
  }
  return list.take();
}

Kernels KernelPricer::experts(Pass pass, std::int64_t capacity, std::int64_t appended_rows) const {
  List list(profile_, pass);
  expert_ffns(list, pass, scenario_.expert_parallel * capacity + appended_rows);
  return list.take();
}

// Megatron-Core sorts chunks of rows; DeepSpeed copies the blocks of each expert for its product
// and joins their outputs.
Kernels KernelPricer::sort_rows(std::int64_t rows) const {
  List list(profile_, Pass::forward);
  list.memory("sort", 2 * row_bytes(rows));
  return list.take();
}

Kernels KernelPricer::shared_expert(Pass pass) const {
  List list(profile_, pass);
  gated_ffn(list, pass, model_.moe->shared_ffn > 0 ? tokens_ : 0, model_.moe->shared_ffn, 1);
  return list.take();
}

Kernels KernelPricer::rectify(Pass pass, std::int64_t rows) const {
  Kernels kernels = rectify_moves(pass, rows);
  List list(profile_, pass);
  const std::int64_t local = experts_per_rank();
  expert_ffns(list, pass, (rows + local - 1) / local);
  for (Kernel& kernel : list.take()) kernels.push_back(std::move(kernel));
  return kernels;
}

Kernels KernelPricer::rectify_moves(Pass pass, std::int64_t rows) const {
  List list(profile_, pass);
  if (rows == 0) return list.take();
  const bool eager = scenario_.dispatch == scenario::Dispatch::einsum;
  const double moved = 2 * row_bytes(rows);
  const double blend = eager ? eager_blend_bytes * token_bytes() / bf16_bytes : moved;
  if (!are_fused()) list.memory_pass("rectify gather", moved, moved);
  list.memory_pass("rectify blend", blend, 1.5 * blend);
  return list.take();
}

Kernels KernelPricer::embedding(Pass pass) const {
  List list(profile_, pass);
  list.memory_pass("embedding", 2 * token_bytes(), 3 * token_bytes());
  return list.take();
}

Kernels KernelPricer::head(Pass pass) const {
  List list(profile_, pass);
  const double logits = static_cast<double>(tokens_ * model_.vocabulary);
  list.gemm("head", {tokens_, model_.vocabulary, model_.hidden});
  if (scenario_.mode == scenario::Mode::train) {
    // Logits in fp32 (2 + 4), log-softmax (4 + 4); backward the same in reverse.
    list.memory_pass("loss", (bf16_bytes + 3 * fp32_bytes) * logits,
                     (bf16_bytes + 3 * fp32_bytes) * logits);
  }
  return list.take();
}

Kernels KernelPricer::optimizer(double parameters) const {
  List list(profile_, Pass::forward);
  list.memory("adam", adam_bytes * parameters);
  return list.take();
}

Kernels KernelPricer::accumulate_gradients(double parameters) const {
  List list(profile_, Pass::forward);
  list.memory("gradient accumulation", 3 * bf16_bytes * parameters);
  return list.take();
}

Kernel KernelPricer::exchange(profile::Collective kind, std::span<const int> members, double bytes,
                              const std::string& label) const {
  Kernel kernel{label, KernelClass::exchange,
                network_.price(kind, members, bytes, network::Senders::all_below), 1, 0};
  if (!scenario_.conditions.slow_links.empty()) {
    // The time of the smallest exchange is latency, as in ExchangeModel.
    kernel.latency_us =
        std::min(kernel.estimate.time_us,
                 network_.price(kind, members, 1, network::Senders::all_below).time_us);
  }
  return kernel;
}

}  // namespace moesim::step
