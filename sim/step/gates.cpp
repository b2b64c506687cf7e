// What each router's gate costs: KernelPricer's router(), and the kernels that only some have.
#include <algorithm>

#include "sim/step/kernel_list.hpp"

namespace moesim::step {
namespace {

using routing::RouterConfig;
using routing::RouterKind;

constexpr double element = 2;  // bytes of bf16
constexpr double wide = 4;     // bytes of fp32
constexpr double key = 12;     // bytes of an fp32 key and its int64 index

// Small kernels of a library's gate over [S, E] tensors: softmax, z- and balance loss, and for each
// choice arg-max, one-hot, cumulative sum, masking, ordering, counting. Counted in DeepSpeed's
// top1gating and top2gating (sharded_moe.py); assumed for others.
constexpr double gate_kernels = 6;
constexpr double gate_kernels_per_choice = 10;

// What limits groups: top-2 of each and their sum, top groups, scatter, mask, fill. Counted in the
// gate of DeepSeek-V3's published inference code (model.py).
constexpr double group_kernels = 6;
// Bias added, scores gathered; in training counts, their mean, sign and step (Wang et al. 2024,
// arXiv:2408.15664, algorithm 1).
constexpr double bias_kernels = 2;
constexpr double bias_update_kernels = 4;

// A radix select or sort of 32-bit keys takes four passes of 8 bits. Assumed of torch.topk over the
// columns of [S, E], which sorts what it selects.
constexpr double radix_passes = 4;

// The auction of BASE layers in fairseq (libbase/balanced_assignment.cpp): each round works on
// [E, S] tensors (bids cleared, column top-k, the highest bid per token, prices taken off the
// scores) and in about 12 kernels on vectors of S, and the host reads two results before it goes
// on. On Gaussian logits it takes 11 to 16 rounds, 13 in the median, for 8 and 64 experts, 4,096
// and 16,384 tokens and popularity biases up to 0.5: counted by running the algorithm.
constexpr double auction_rounds = 13;
constexpr double auction_vector_kernels = 12;
constexpr double auction_host_reads = 2;

// torch.cumsum over the tokens of an [S, E] one-hot: one thread per expert walks down S rows, each
// step waiting for the L2 cache (torch's outer-dimension scan; what Tutel's fast_cumsum replaces).
// 200 cycles at 1.41 GHz on A100: Abdelkhalik et al. 2022 (arXiv:2208.11174); assumed elsewhere.
constexpr double scan_step_us = 200 / 1410.0;

// A true fp32 GEMM runs on the CUDA cores: 1/16 of the dense bf16 rate on A100 (19.5 of 312
// TFLOP/s), 1/15 on H100 and H200 (67 of 989), datasheets.
constexpr double fp32_share_of_bf16 = 1.0 / 16;

// Bytes per cell of [S, E p] of soft routing beside its GEMMs. Forward: two softmaxes read fp32
// logits and write bf16 weights. Backward: each reads weights and their gradient and writes that of
// the logits, and the two are added up.
constexpr double softmax_bytes = 2 * (wide + element);
constexpr double softmax_bytes_backward = 2 * (2 * element + wide) + 3 * wide;

// How many gates a token passes: SCoMoE's pools select by themselves.
double pools(const RouterConfig& router) {
  if (router.kind != RouterKind::scomoe) return 1;
  const double local = router.local_share.to_double();
  const double node = router.node_share.to_double();
  return (local > 0 ? 1 : 0) + (node > 0 ? 1 : 0) + (local + node < 1 ? 1 : 0);
}

double small_kernels(const RouterConfig& router, bool train) {
  const double choices = gate_kernels_per_choice * router.choices();
  const double grouping = router.groups > 1 ? group_kernels : 0;
  switch (router.kind) {
    case RouterKind::expert_choice:
      return gate_kernels;
    case RouterKind::base:  // arg-max, sort by expert, counts, inverse
      return 4;
    case RouterKind::random:
    case RouterKind::hash:
      return choices;
    case RouterKind::group_limited:
      return gate_kernels + choices + grouping;
    case RouterKind::bias_balanced:
      return gate_kernels + choices + grouping + bias_kernels + (train ? bias_update_kernels : 0);
    default:
      return pools(router) * (gate_kernels + choices);
  }
}

}  // namespace

// Gate GEMM, softmax and top-k' in one kernel on tensor cores, bf16 input read once; backward a
// GEMM each by input and by weight.
Kernels KernelPricer::fused_gate(Pass pass) const {
  List list(profile_, pass);
  const auto logits = wide * static_cast<double>(tokens_ * scenario_.experts);
  list.memory(pass == Pass::forward ? "fused gate" : "fused gate backward",
              pass == Pass::forward ? token_bytes() + logits : 3 * token_bytes() + 2 * logits,
              profile::MemoryKernel::streaming, 1, KernelClass::gating);
  return list.take();
}

// fp32 copy of the input and fp32 GEMM: whichever is slower, its bytes or its FLOPs on the CUDA
// cores.
void KernelPricer::gate_product(List& list, Pass pass) const {
  const auto tokens = static_cast<double>(tokens_);
  const auto hidden = static_cast<double>(model_.hidden);
  const double experts = scenario_.experts;
  list.memory_pass("gate input in fp32", (element + wide) * tokens * hidden,
                   (element + wide) * tokens * hidden);
  const double products = pass == Pass::forward ? 1 : 2;
  profile::Estimate gate = profile_.memory(wide * tokens * (hidden + experts));
  const double flop_us = 2 * tokens * hidden * experts /
                         (profile_.device().peak_bf16_flops * fp32_share_of_bf16) * 1e6;
  if (flop_us > gate.time_us) {
    gate = {flop_us, flop_us, 1.5 * flop_us, profile::Origin::assumed, gate.support};
  }
  list.add("gate GEMM", KernelClass::gating, gate, products);
}

// Each expert's C best of S tokens: scores transposed, selected, sorted.
void KernelPricer::column_selection(List& list) const {
  const double cells = static_cast<double>(tokens_) * static_cast<double>(scenario_.experts);
  const double chosen = static_cast<double>(scenario_.router.capacity(tokens_, scenario_.experts)) *
                        scenario_.experts;
  const auto streaming = profile::MemoryKernel::streaming;
  list.memory("column transpose", 2 * wide * cells, streaming, 1, KernelClass::gating);
  list.memory("column select", wide * cells, streaming, radix_passes, KernelClass::gating);
  list.memory("column sort", 2 * key * std::min(chosen, cells), streaming, radix_passes,
              KernelClass::gating);
}

void KernelPricer::auction(List& list) const {
  const auto tokens = static_cast<double>(tokens_);
  const double cells = tokens * scenario_.experts;
  const auto streaming = profile::MemoryKernel::streaming;
  const auto pass_over = [&](const char* label, double bytes, double count) {
    list.memory(label, bytes, streaming, auction_rounds * count, KernelClass::gating);
  };
  pass_over("auction clear", wide * cells, 1);
  pass_over("auction select", wide * cells, radix_passes);
  pass_over("auction highest", wide * cells, 1);
  pass_over("auction prices", 2 * wide * cells, 1);
  pass_over("auction vectors", 2 * wide * tokens, auction_vector_kernels);
  for (Kernel kernel : host_read()) {
    list.add(kernel.label, kernel.kernel_class, kernel.estimate,
             auction_rounds * auction_host_reads);
  }
}

// Logits of all slots, and their softmaxes over tokens and over slots.
Kernels KernelPricer::slot_weights(Pass pass) const {
  List list(profile_, pass);
  const std::int64_t slots = scenario_.mixed_slots();
  list.gemm("slot logits", tokens_, slots, model_.hidden);
  const double cells = static_cast<double>(tokens_) * static_cast<double>(slots);
  list.memory_pass("slot softmaxes", softmax_bytes * cells, softmax_bytes_backward * cells);
  return list.take();
}

Kernels KernelPricer::router(Pass pass) const {
  if (tokens_ == 0) return {};
  const RouterConfig& router = scenario_.router;
  if (router.kind == RouterKind::soft) return slot_weights(pass);
  if (router.has_gate() && scenario_.fusion == scenario::Fusion::fused) return fused_gate(pass);
  // BASE trains its centroids through the weight of the expert's output alone.
  const bool learns = router.has_gate() && router.kind != RouterKind::base;
  if (pass == Pass::backward && !learns) return {};
  List list(profile_, pass);
  const auto tokens = static_cast<double>(tokens_);
  if (router.has_gate()) gate_product(list, pass);
  const double small = small_kernels(router, scenario_.mode == scenario::Mode::train);
  list.memory("gate kernels", 2 * wide * tokens * scenario_.experts,
              profile::MemoryKernel::streaming, pass == Pass::forward ? small : small / 2,
              KernelClass::gating);
  if (pass == Pass::backward) return list.take();
  if (router.kind == RouterKind::expert_choice) {
    column_selection(list);
  } else if (router.kind == RouterKind::base) {
    if (!router.greedy) auction(list);
  } else if (scenario_.dispatch == scenario::Dispatch::einsum) {
    const double scan_us = scan_step_us * tokens;
    list.add("gate cumsum", KernelClass::gating,
             {scan_us, 0.8 * scan_us, 1.5 * scan_us, profile::Origin::assumed,
              profile::Support::extrapolated},
             router.choices());
  }
  return list.take();
}

// A result copied to the host, and the GPU idle until kernels that wait for it are launched.
// Assumed: no published figure; a copy and a launch take about 10 us each.
Kernels KernelPricer::host_read() const {
  List list(profile_, Pass::forward);
  list.add("host read", KernelClass::gating,
           {host_read_us, host_read_us / 2, 2 * host_read_us, profile::Origin::assumed,
            profile::Support::interpolated});
  return list.take();
}

// Of a sequence whose tokens are mixed; a GPU may hold a part of one.
std::int64_t KernelPricer::mixed_length() const {
  return scenario_.tokens_per_gpu / scenario_.mixed_sequences();
}

// One way between the tokens of a sequence and its slots, sequence by sequence: the product that
// makes `made` rows of `used` rows; backward by both of its factors.
Kernels KernelPricer::mix(Pass pass, const std::string& name, std::int64_t made,
                          std::int64_t used) const {
  List list(profile_, Pass::forward);
  const std::int64_t length = mixed_length();
  const double sequences = static_cast<double>(tokens_) / static_cast<double>(length);
  if (pass == Pass::forward) {
    list.gemm(name, made, model_.hidden, used, sequences);
  } else {
    list.gemm(name + " by input", used, model_.hidden, made, sequences);
    list.gemm(name + " by weight", length, scenario_.mixed_slots(), model_.hidden, sequences);
  }
  return list.take();
}

// Slots as mixes of the tokens of a sequence, and tokens as mixes of what came of the slots.
Kernels KernelPricer::mix_slots(Pass pass) const {
  return mix(pass, "slot dispatch", scenario_.mixed_slots(), mixed_length());
}

Kernels KernelPricer::unmix_slots(Pass pass) const {
  return mix(pass, "slot combine", mixed_length(), scenario_.mixed_slots());
}

// y = s E(x) + (1 - s) x of BASE, s one sigmoid per row: reads both, writes one; backward reads the
// gradient too and writes two.
Kernels KernelPricer::gated_residual(Pass pass, std::int64_t rows) const {
  List list(profile_, pass);
  list.memory_pass("gated residual", 3 * row_bytes(rows), 5 * row_bytes(rows));
  return list.take();
}

}  // namespace moesim::step
