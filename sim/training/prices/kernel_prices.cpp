#include "sim/training/prices/kernel_prices.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "sim/model/training_work.hpp"
#include "sim/profile/latent_share.hpp"

namespace moesim::training {
namespace {

using profile::MemoryKernel;

// Fitted to public steps, one constant for all machines: memory-bound kernels of a training library
// take so many times as long as the curve's. A public B200 table of Megatron's kernels has 0.67 of
// the peak bandwidth where the curve has 0.9 (MooreThreads/SimuMax v1.2, b200_bf16_ceperm.json).
constexpr double memory_slowdown = 1.5;

// A product cannot run faster than the board's power allows (profile::Device); in other formats
// than bf16 a FLOP takes so much of its energy. Assumed for boards that do not say what they hold
// in FP8. At 0.5 predictions for Blackwell in FP8 would be 2 to 4 % slower, so closer, but errors
// with one factor for bf16 and FP8 larger.
constexpr double fp8_energy_share = 0.42;
constexpr double fp4_energy_share = 0.25;

// The published FP8 calls cast their activations in a slow kernel of their own, which a fit can
// take out of long products only: where a curve holds that cast, an FP8 product is priced as
// bf16's, at so many times its speed. moesim profile measures products alone: their curve is the
// price. In the public tables' products with m and k of at least 2,048 and n of at least 40,000,
// where the cast is a small part, the medians are, one scale per tensor, H100 1.48, H200 1.79,
// B200 1.88, B300 1.90, GB300 1.82; scales per block H100 1.74, H200 1.76, B200 1.69, B300 1.75,
// GB300 1.60. H100's calls with one scale are slower than its calls by block, which no product
// explains; GB200's bf16 is of a board that was slowed down.
constexpr double fp8_over_bf16 = 1.9;
constexpr double fp8_block_over_bf16 = 1.7;
// The least share of a call in NVFP4 that is product: assumed.
constexpr double least_product_share = 1.0 / 8;

// Core attention, backward, over 2.5 times the curve's, which is of inference kernels; latent
// attention has profile::latent_share(). B200, 32 to 128 heads of 128: forward 0.98 to 1.02,
// backward 0.91 to 1.22 (the same table).
constexpr double backward_attention = 1.15;
// The time of attention in FP8 over that in bf16: assumed.
constexpr double fp8_attention_share = 0.7;
// What a query takes beside its keys, in keys, where heads share keys: published attention tables
// with and without a window of 128, 1,024 to 16,384 tokens, medians: H100 620, H200 580, B200 860,
// GB200 860, B300 1,060, GB300 1,130. With a key head for each query head it is twice that.
constexpr double keys_per_query = 800;

bool is_fp8(const std::string& type) { return type.rfind("fp8", 0) == 0; }

// FLOP/s that products of a data type hold in a step; 0: not known.
double sustained_flops(const profile::Device& device, const std::string& type) {
  const double held = type == "fp8"         ? device.sustained_fp8_flops
                      : type == "fp8_block" ? device.sustained_fp8_block_flops
                                            : 0;
  if (held > 0) return held;
  if (is_fp8(type)) return device.sustained_bf16_flops / fp8_energy_share;
  return device.sustained_bf16_flops / (type == "nvfp4" ? fp4_energy_share : 1);
}

double weight_bytes(const std::string& type) {
  if (is_fp8(type)) return 1;
  return type == "nvfp4" ? 0.5 : 2;
}

// The work of the core attention of all layers, whose windows differ, over that without a window.
double window_share(const model::Model& model, double length) {
  if (!model.window) return 1;
  double sum = 0;
  for (int layer = 0; layer < model.layers; ++layer) {
    sum +=
        (keys_per_query + model::keys_seen(model, layer, length)) / (keys_per_query + length / 2);
  }
  return sum / model.layers;
}

}  // namespace

KernelPrices::KernelPrices(const TrainingJob& job)
    : job_(job), products_(job.profile->training_products()), type_(job.product_type()) {
  window_share_ = window_share(*job.model, static_cast<double>(job.layout.sequence_length));
  products_.gemm(1024, 1024, 1024, type_);  // throws where there is no curve
}

double KernelPrices::memory_us(double bytes, MemoryKernel kind) const {
  return bytes > 0 ? memory_slowdown * job_.profile->memory(bytes, kind).time_us : 0;
}

double KernelPrices::elementwise_us(double bytes) const {
  return bytes > 0 ? job_.profile->memory(bytes).time_us : 0;
}

double KernelPrices::rows_moved_us(double tokens, double rows, double home) const {
  const auto whole = [](double value) { return std::max<std::int64_t>(1, std::llround(value)); };
  const std::int64_t hidden = job_.model->hidden;
  return job_.profile->permute_rows(whole(tokens), whole(rows), hidden).time_us +
         job_.profile->combine_rows(whole(home), whole(rows), hidden).time_us;
}

double KernelPrices::dense_product_us(const Product& product) const {
  const auto [m, n, k] = std::array{product.m, product.n, product.k};
  const std::string type = product.is_wide ? profile::default_data_type : type_;
  double time_us = 0;
  if (is_fp8(type) && products_.gemm_cast_us(m, k, type) > 0) {
    const double cells = static_cast<double>(m) * static_cast<double>(n);
    const double read = static_cast<double>(k) * static_cast<double>(m + n);
    const double speed = type == "fp8_block" ? fp8_block_over_bf16 : fp8_over_bf16;
    time_us = std::max(products_.gemm(m, n, k).time_us / speed,
                       memory_us(read + 2 * cells, MemoryKernel::streaming));
  } else {
    const double call_us = products_.gemm(m, n, k, type).time_us;
    time_us = std::max(call_us - products_.gemm_cast_us(m, k, type), least_product_share * call_us);
  }
  const double sustained = sustained_flops(job_.profile->device(), type);
  if (sustained <= 0) return time_us;
  const double flops = 2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  return std::max(time_us, flops / sustained * 1e6);
}

double KernelPrices::product_us(const Product& product) const {
  const double dense_us = dense_product_us(product);
  if (product.copies <= 1 || product.by_weight) return dense_us;
  const double weights =
      product.copies * static_cast<double>(product.n) * static_cast<double>(product.k);
  const std::string type = product.is_wide ? profile::default_data_type : type_;
  const double reading_us = memory_us(weight_bytes(type) * weights, MemoryKernel::streaming);
  // One kernel for all experts hides the reads of their weights.
  if (job_.fused_experts) return std::max(dense_us, reading_us);
  // Apart, each expert's product reads its weights before its first tile: the sum of both is within
  // 20 % of the published grouped products of Transformer Engine on B200, 128 to 2,460 rows for
  // each of 20 to 256 experts (SimuMax, as above), but for experts of 30 MB and fewer.
  return dense_us + reading_us;
}

double KernelPrices::core_attention_us(bool backward) const {
  const model::Model& model = *job_.model;
  const parallel::ParallelLayout& sizes = job_.layout.sizes;
  // Other widths than the curve's, windows and shares of the queries by their FLOPs.
  const double share = static_cast<double>(model.query_key_dim() + model.value_dim()) /
                       static_cast<double>(2 * model.head_dim) * window_share_ / sizes.context;
  const std::int64_t heads = std::max<std::int64_t>(1, model.heads / sizes.tensor);
  const std::int64_t kv_heads =
      std::max<std::int64_t>(1, (model.latent ? model.heads : model.kv_heads) / sizes.tensor);
  const double kernel =
      model.latent ? profile::latent_share(backward) : (backward ? backward_attention : 1);
  const double narrow = job_.fp8_attention ? fp8_attention_share : 1;
  const profile::AttentionShape shape = {job_.layout.micro_batch, job_.layout.sequence_length,
                                         heads, kv_heads, model.head_dim};
  const auto curve_us = [&](const profile::Profile& profile) {
    return profile.attention(shape, backward).time_us;
  };
  double time_us = curve_us(*job_.profile);
  // Attention of a board that was slowed down is slower too, most of all in long kernels.
  if (&products_ != job_.profile.get()) time_us = std::min(time_us, curve_us(products_));
  return share * kernel * narrow * time_us;
}

}  // namespace moesim::training
