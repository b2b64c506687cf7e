// The cost of a router's gate: its work (routing::GateWork) priced with the profile's curves.
// KernelPricer's router(), and the kernels that only some routers have.

#include "sim/step/kernels/kernel_list.hpp"

#include "sim/base/units.hpp"

namespace moesim::step {
namespace {

using routing::GateWork;

// torch.cumsum over the tokens of an [S, E] one-hot: one thread per expert reads S rows one after
// another, and each step waits for the L2 cache (torch's outer-dimension scan, which Tutel's
// fast_cumsum replaces). 200 cycles at 1.41 GHz on A100: Abdelkhalik et al. 2022
// (arXiv:2208.11174); assumed elsewhere.
constexpr double scan_step_us = 200 / 1410.0;

// A true fp32 GEMM runs on the CUDA cores: 1/16 of the dense bf16 rate on A100 (19.5 of 312
// TFLOP/s), 1/15 on H100 and H200 (67 of 989), datasheets.
constexpr double fp32_share_of_bf16 = 1.0 / 16;

// A kernel that selects waits for several dependent steps in a block (histogram, scan, scatter),
// beyond a streaming kernel of its bytes, and what it picks for a token one after another. From 30
// points of the suite routing on one H200 (h200-sxm-measured), of 8 to 512 experts and 1 to 8
// choices: 7 % off in the median, up to 22 % too slow, and 42 to 44 % too fast at 512 experts.
// Assumed elsewhere.
constexpr double selection_kernel_us = 1.2;
constexpr double pick_us = 0.0625e-3;
constexpr double selection_low = 0.8, selection_high = 1.6;  // of a time: 5 and 95 %

profile::Estimate selection(const profile::Profile& profile, const GateWork& work) {
  profile::Estimate estimate = profile.memory(work.bytes);
  const double time_us = work.count * (selection_kernel_us + estimate.time_us) +
                         pick_us * static_cast<double>(work.rows);
  return {time_us, selection_low * time_us, selection_high * time_us, profile::Origin::assumed,
          estimate.support};
}

}  // namespace

// A true fp32 GEMM: limited by its bytes or by its FLOPs on the CUDA cores, whichever takes longer.
void KernelPricer::gate_product(List& list, const GateWork& work) const {
  const auto rows = static_cast<double>(work.rows);
  const auto columns = static_cast<double>(work.columns);
  const auto depth = static_cast<double>(work.depth);
  profile::Estimate gate = profile_.memory(fp32_bytes * rows * (depth + columns));
  const double flop_us =
      2 * rows * depth * columns / (profile_.device().peak_bf16_flops * fp32_share_of_bf16) * 1e6;
  if (flop_us > gate.time_us) {
    gate = {flop_us, flop_us, 1.5 * flop_us, profile::Origin::assumed, gate.support};
  }
  list.add(work.label, KernelClass::gating, gate, work.count);
}

Kernels KernelPricer::router(Pass pass) const {
  if (tokens_ == 0) return {};
  const routing::RouterConfig& router = scenario_.router;
  routing::GateShape shape;
  shape.tokens = tokens_;
  shape.hidden = model_.hidden;
  shape.experts = scenario_.experts;
  shape.slots = router.mixes_tokens() ? scenario_.mixed_slots() : 0;
  shape.backward = pass == Pass::backward;
  shape.train = scenario_.mode == scenario::Mode::train;
  shape.fused = scenario_.fusion == scenario::Fusion::fused;
  shape.one_hot = scenario_.dispatch == scenario::Dispatch::einsum;
  List list(profile_, pass);
  for (const GateWork& work : router.kind->price(router, shape)) {
    switch (work.kind) {
      case GateWork::Kind::gemm:
        list.gemm(work.label, {work.rows, work.columns, work.depth}, work.count);
        break;
      case GateWork::Kind::fp32_product:
        gate_product(list, work);
        break;
      case GateWork::Kind::bf16_product:
        list.gemm(work.label, {work.rows, work.columns, work.depth}, work.count,
                  KernelClass::gating);
        break;
      case GateWork::Kind::selection:
        list.add(work.label, KernelClass::gating, selection(profile_, work));
        break;
      case GateWork::Kind::streaming:
        list.memory(work.label, work.bytes, profile::MemoryKernel::streaming, work.count,
                    work.gating ? KernelClass::gating : KernelClass::memory);
        break;
      case GateWork::Kind::serial_scan: {
        const double scan_us = scan_step_us * static_cast<double>(work.rows);
        list.add(work.label, KernelClass::gating,
                 {scan_us, 0.8 * scan_us, 1.5 * scan_us, profile::Origin::assumed,
                  profile::Support::extrapolated},
                 work.count);
        break;
      }
      case GateWork::Kind::host_read:
        for (const Kernel& read : host_read()) {
          list.add(read.label, read.kernel_class, read.estimate, work.count);
        }
        break;
    }
  }
  return list.take();
}

// A result is copied to the host, and the GPU is idle until the kernels that wait for it are
// launched. Assumed: no published figure; a copy and a launch take about 10 us each.
Kernels KernelPricer::host_read() const {
  List list(profile_, Pass::forward);
  list.add("host read", KernelClass::gating,
           {host_read_us, host_read_us / 2, 2 * host_read_us, profile::Origin::assumed,
            profile::Support::interpolated});
  return list.take();
}

// For a sequence whose tokens are mixed; a GPU may hold part of a sequence.
std::int64_t KernelPricer::mixed_length() const {
  return scenario_.tokens_per_gpu / scenario_.mixed_sequences();
}

// One direction between the tokens and the slots of a sequence, per sequence: the product that
// makes `made` rows from `used` rows; backward: the gradients of both factors.
Kernels KernelPricer::mix(Pass pass, const std::string& name, std::int64_t made,
                          std::int64_t used) const {
  List list(profile_, Pass::forward);
  const std::int64_t length = mixed_length();
  const double sequences = static_cast<double>(tokens_) / static_cast<double>(length);
  if (pass == Pass::forward) {
    list.gemm(name, {made, model_.hidden, used}, sequences);
  } else {
    list.gemm(name + " by input", {used, model_.hidden, made}, sequences);
    list.gemm(name + " by weight", {length, scenario_.mixed_slots(), model_.hidden}, sequences);
  }
  return list.take();
}

// Slots as mixtures of the tokens of a sequence, and tokens as mixtures of the slots' outputs.
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
