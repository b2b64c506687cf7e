#include "sim/training/prices/host_launches.hpp"

#include <algorithm>

namespace moesim::training {
namespace {

// Kernels of a layer, forward. Assumed: together with the 15 us of a launch they give the 9 ms that
// public steps of micro-batches of one sequence take for a dropless MoE layer, forward and
// backward, on H100 and B200 nodes, whatever the GPU could do.
constexpr double attention_launches = 40;
// Where linear attention stands in its place: the delta rule alone is 8 kernels forward
// (flash-linear-attention), convolution, norms, gates and copies about 15. Assumed.
constexpr double linear_attention_launches = 55;
constexpr double dense_launches = 15;
constexpr double router_launches = 60;
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

// The launches between the router and the next layer.
double moe_block_launches(const TrainingJob& job) {
  const bool calls_nccl = !job.dispatcher && job.layout.sizes.expert > 1;
  const double apart = expert_launches * local_experts(job);
  return moe_launches + (calls_nccl ? all_to_all_launches : 0) +
         (job.fused_experts ? std::min(fused_launches, apart) : apart);
}

}  // namespace

HostLaunches host_launches(const TrainingJob& job, bool is_moe, model::AttentionKind attention) {
  HostLaunches launches;
  if (job.graphs == Graphs::layers) return launches;
  const double alone =
      attention == model::AttentionKind::linear ? linear_attention_launches : attention_launches;
  launches.before = job.graphs == Graphs::parts ? 1 : alone;
  const double router = !is_moe ? 0 : job.graphs == Graphs::none ? router_launches : 1;
  const double ffn = is_moe ? moe_block_launches(job) : dense_launches;
  launches.before += router;
  launches.forward = launches.before + ffn;
  const model::Recompute& recompute = job.recompute;
  if (recompute.full != model::FullRecompute::none) {
    launches.again = launches.forward;
  } else if (recompute.has(is_moe ? model::RecomputeModule::moe : model::RecomputeModule::mlp)) {
    launches.again = router + ffn;
  }
  return launches;
}

double forward_wait_us(const TrainingJob& job, bool is_moe, double before_us, double after_us,
                       model::AttentionKind attention) {
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

double backward_wait_us(const TrainingJob& job, bool is_moe, double kernels_us,
                        model::AttentionKind attention) {
  if (job.graphs == Graphs::layers) return 0;
  const HostLaunches count = host_launches(job, is_moe, attention);
  const double issued_us =
      (backward_launches * count.forward + count.again) * job.host.priced_launch_us();
  const bool reads_again = reads_rows(job, is_moe) && count.again > 0;
  return std::max(0.0, issued_us - kernels_us) + (reads_again ? job.host.priced_sync_us() : 0);
}

}  // namespace moesim::training
