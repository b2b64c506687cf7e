#include "sim/training/prices/host_launches.hpp"

#include <algorithm>

#include "sim/routing/rules/gate_work.hpp"

namespace moesim::training {
namespace {

using model::AttentionKind;

// Kernels of a layer, forward. Assumed: together with the 15 us of a launch they give the 9 ms that
// public steps of micro-batches of one sequence take for a dropless MoE layer, forward and
// backward, on H100 and B200 nodes, whatever the GPU could do.
constexpr double attention_launches = 40;
// Where linear attention stands in its place: the delta rule alone is 8 kernels forward
// (flash-linear-attention), convolution, norms, gates and copies about 15. Assumed.
constexpr double linear_attention_launches = 55;
constexpr double dense_launches = 15;
constexpr double router_launches = 60;
// Rectification as a library's router would have it: FR is one more choice, IR another one among
// the GPU's own experts, each with as many kernels as any choice (counted in DeepSpeed). The rows
// of IR are gathered before the experts' products and blended behind them. Those of kernels/ would
// be none for FR and two for IR, which the rows travel with.
constexpr double rectifying_launches = routing::gate_kernels_per_choice;
constexpr double rectified_row_launches = 2;
constexpr double moe_launches = 60;         // permute, FFN, combine
constexpr double all_to_all_launches = 30;  // more without a dispatcher that does it in one kernel
constexpr double expert_launches = 2;       // for each local expert
constexpr double fused_launches = 4;        // for all, in one kernel, at most

double local_experts(const TrainingJob& job) {
  return static_cast<double>(job.held_experts()) / job.layout.sizes.expert;
}

// Products of several local experts need their rows too, where none come from other ranks.
bool reads_rows(const TrainingJob& job, bool is_moe) {
  const bool dispatcher_reads = !job.dispatcher || job.dispatcher->host_reads;
  const bool divides = job.layout.sizes.expert > 1 || local_experts(job) > 1;
  return is_moe && job.reads_row_counts() && divides && dispatcher_reads;
}

bool rectifies_inside(const TrainingJob& job) {
  return job.routing && job.routing->router.rectification != routing::Rectification::none;
}

// The launches of the router: one where a graph has them.
double gate_launches(const TrainingJob& job) {
  if (job.graphs != Graphs::none) return 1;
  return router_launches + (job.fills_in() ? rectifying_launches : 0) +
         (rectifies_inside(job) ? rectifying_launches : 0);
}

// The launches between the router and the next layer.
double moe_block_launches(const TrainingJob& job) {
  const bool calls_nccl = !job.dispatcher && job.layout.sizes.expert > 1;
  const double apart = expert_launches * local_experts(job);
  return moe_launches + (calls_nccl ? all_to_all_launches : 0) +
         (rectifies_inside(job) ? rectified_row_launches : 0) +
         (job.fused_experts ? std::min(fused_launches, apart) : apart);
}

// Of an FFN with weights in two products, that of a gate in the first.
constexpr double ffn_products = 2;

// Products of weight gradients. Where the forward pass is a graph, theirs are one too.
double weight_gradient_launches(const TrainingJob& job, bool is_moe, AttentionKind attention) {
  const model::Model& model = *job.model;
  const std::size_t projections = attention == AttentionKind::linear
                                      ? model.linear_projections().size()
                                      : model.attention_projections().size();
  const double alone = job.graphs == Graphs::parts ? 1 : static_cast<double>(projections);
  if (!is_moe) return alone + ffn_products;
  const double gate = 1;
  const double shared = model.moe->shared_ffn > 0 ? ffn_products : 0;
  return alone + gate + shared + ffn_products * (job.fused_experts ? 1 : local_experts(job));
}

}  // namespace

double HostLaunches::backward() const { return backward_launches * forward + recomputed; }

HostLaunches host_launches(const TrainingJob& job, bool is_moe, AttentionKind attention) {
  HostLaunches launches;
  if (job.graphs == Graphs::layers) return launches;
  const double alone =
      attention == AttentionKind::linear ? linear_attention_launches : attention_launches;
  launches.before = job.graphs == Graphs::parts ? 1 : alone;
  const double router = is_moe ? gate_launches(job) : 0;
  const double ffn = is_moe ? moe_block_launches(job) : dense_launches;
  launches.before += router;
  launches.forward = launches.before + ffn;
  const model::Recompute& recompute = job.recompute;
  if (recompute.full != model::FullRecompute::none) {
    launches.recomputed = launches.forward;
  } else if (recompute.has(is_moe ? model::RecomputeModule::moe : model::RecomputeModule::mlp)) {
    launches.recomputed = router + ffn;
  }
  launches.weight_gradient = weight_gradient_launches(job, is_moe, attention);
  return launches;
}

double forward_wait_us(const TrainingJob& job, bool is_moe, double before_us, double after_us,
                       AttentionKind attention) {
  if (job.graphs == Graphs::layers) return 0;
  const HostLaunches count = host_launches(job, is_moe, attention);
  const double launch_us = job.host.priced_launch_us();
  if (!reads_rows(job, is_moe)) {
    return std::max(0.0, count.forward * launch_us - before_us - after_us);
  }
  // The queue is empty after the read.
  return std::max(0.0, count.before * launch_us - before_us) +
         std::max(0.0, (count.forward - count.before) * launch_us - after_us) +
         job.host.priced_sync_us();
}

BackwardTimes backward_wait_us(const TrainingJob& job, bool is_moe, const BackwardTimes& kernels,
                               AttentionKind attention) {
  if (job.graphs == Graphs::layers) return {};
  const HostLaunches count = host_launches(job, is_moe, attention);
  const double launch_us = job.host.priced_launch_us();
  const double by_weight = count.weight_gradient;
  const auto wait_us = [&](double launches, double kernels_us) {
    return std::max(0.0, launches * launch_us - kernels_us);
  };
  BackwardTimes waits = {wait_us(count.backward() - by_weight, kernels.input_gradient_us),
                         wait_us(by_weight, kernels.weight_gradient_us)};
  const parallel::ScheduleKind schedule = job.layout.shape().kind;
  if (!parallel::splits_backward(schedule)) {
    const double joint_us =
        wait_us(count.backward(), kernels.input_gradient_us + kernels.weight_gradient_us);
    const double apart_us = waits.input_gradient_us + waits.weight_gradient_us;
    const bool divides = parallel::is_dual(schedule) && apart_us > 0;
    waits.weight_gradient_us = divides ? joint_us * waits.weight_gradient_us / apart_us : 0;
    waits.input_gradient_us = joint_us - waits.weight_gradient_us;
  }
  // Rows are read again before the experts are computed again.
  if (reads_rows(job, is_moe) && count.recomputed > 0) {
    waits.input_gradient_us += job.host.priced_sync_us();
  }
  return waits;
}

}  // namespace moesim::training
