#include "sim/training/job/job_ranges.hpp"

#include <cstdint>
#include <limits>

#include "sim/base/check_range.hpp"

namespace moesim::training {
namespace {

constexpr double most_load = 1e6;  // over balance
constexpr int most_sms = 1 << 16;

void check_layout(const parallel::LayoutRequest& layout) {
  const parallel::ParallelLayout& sizes = layout.sizes;
  const auto size = [](const char* name, int value) {
    check_range(name, value, 1, cluster::most_gpus);
  };
  size("--gpus", sizes.gpus);
  size("--tensor-parallel", sizes.tensor);
  size("--context-parallel", sizes.context);
  size("--pipeline-parallel", sizes.pipeline);
  size("--virtual-pipeline", sizes.virtual_pipeline);
  size("--expert-parallel", sizes.expert);
  size("--expert-tensor-parallel", sizes.expert_tensor);
  check_range("--sequence-length", layout.sequence_length, 1, parallel::most_sequences);
  check_range("--micro-batch", layout.micro_batch, 1, parallel::most_micro_batch);
  check_range("--global-batch", layout.global_batch, 0, parallel::most_sequences);
  check_range("--micro-batch-group", std::int64_t{layout.micro_batch_group}, 0,
              parallel::most_micro_batch);
}

void check_host(const HostCosts& host) {
  check_range("--launch-us", host.launch_us, 0, HostCosts::most_launch_us);
  check_range("--host-read-us", host.sync_us, 0, HostCosts::most_sync_us);
  check_range("--step-overhead-ms", host.step_us / 1e3, 0, HostCosts::most_step_us / 1e3);
  check_range("HostCosts::factor", host.factor, 0, 1e6);
}

void check_routing(const DrawnRouting& routing) {
  check_range("--rank-capacity", routing.rank_capacity, 0, most_load);
  check_range("DrawnRouting::replica", routing.replica, 0, std::numeric_limits<int>::max());
  check_range("--trace-step", routing.trace_step, 0, std::numeric_limits<int>::max());
}

}  // namespace

void check_documents(const TrainingJob& job) {
  const auto check = [](bool is_there, const char* name) {
    if (!is_there) throw UsageError(fmt::format("--{}: the job has none: read one", name));
  };
  check(job.model != nullptr, "model");
  check(job.profile != nullptr, "profile");
  check(job.cluster != nullptr, "cluster");
}

void check_ranges(const TrainingJob& job) {
  check_layout(job.layout);
  check_host(job.host);
  if (job.routing) check_routing(*job.routing);
  check_range("--zero", job.states.zero, 0, 3);
  check_range("--optimizer-instances", job.states.optimizer_instances, 1, cluster::most_gpus);
  check_range("--top-k", job.choices, 0, job.model->moe ? job.model->moe->experts : 0);
  check_range("--capacity-factor", job.capacity_factor, 0, most_load);
  check_range("--expert-load", job.expert_load, 0, most_load);
  check_range("--ranks-per-domain", job.ranks_per_domain, 0, cluster::most_gpus);
  check_range("--redundant-experts", job.redundant_experts, 0, most_redundant_experts);
  check_range("TrainingJob::exchange_sms", job.exchange_sms, 0, most_sms);
  check_range("TrainingJob::hidden_share", job.hidden_share, 0, 1);
  if (!job.forced_groups) return;
  check_range("KeptGroups::groups", job.forced_groups->groups, 1, std::numeric_limits<int>::max());
  check_range("KeptGroups::kept", job.forced_groups->kept, 1, job.forced_groups->groups);
}

}  // namespace moesim::training
