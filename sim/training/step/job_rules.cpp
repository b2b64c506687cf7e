#include "sim/training/step/job_rules.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/base/error.hpp"
#include "sim/parallel/nearest_layouts.hpp"
#include "sim/training/drawn/block_routing.hpp"
#include "sim/training/drawn/rank_capacity.hpp"
#include "sim/training/drawn/routing_misfit.hpp"
#include "sim/training/job/job_ranges.hpp"
#include "sim/training/prices/dispatched_rows.hpp"

namespace moesim::training {
namespace {

using parallel::GroupKind;
using Refusal = std::optional<std::string>;

bool drops_or_rectifies(const routing::RouterConfig& router) {
  return router.has_capacity() || router.fill_in ||
         router.rectification != routing::Rectification::none;
}

// The load of the fullest rank over balance where all tokens choose experts that it has.
double most_load(const TrainingJob& job) {
  if (!job.model->moe) return 1;
  const double ranks = job.layout.sizes.expert;
  const double choices = job.experts_per_token();
  return std::min(ranks, std::max(1.0, job.held_experts() / choices));
}

// Ranks that have fewer experts than a token chooses are no fuller with more of them.
const char* or_more_ranks(const TrainingJob& job, double most_load) {
  return most_load < job.layout.sizes.expert ? "" : ", or more --expert-parallel";
}

Refusal rank_capacity_refusal(const TrainingJob& job) {
  if (!job.routing || job.routing->rank_capacity <= 0) return std::nullopt;
  const routing::RouterConfig& router = job.routing->router;
  if (router.has_capacity()) {
    return "--rank-capacity with a capacity per expert: rows that overflow a rank are not dropped, "
           "the step runs again: leave --capacity-factor out";
  }
  if (drops_or_rectifies(router)) {
    return fmt::format(
        "--rank-capacity with --router {}: nothing is dropped that could be rectified: choose "
        "dropless",
        router.name());
  }
  if (!draw_refusal(router).empty()) return std::nullopt;  // for DrawnLoads to say
  if (const double most = most_load(job); job.routing->rank_capacity > most) {
    return fmt::format(
        "--rank-capacity {:g}: at most {:g} times balance on one of {} expert-parallel ranks, "
        "where "
        "all tokens choose experts of it: give a smaller budget{}",
        job.routing->rank_capacity, most, job.layout.sizes.expert, or_more_ranks(job, most));
  }
  const std::string refusal = rank_rows_refusal(job);
  return refusal.empty() ? Refusal() : refusal;
}

Refusal instances_refusal(const TrainingJob& job) {
  const int instances = job.states.optimizer_instances;
  if (instances == 1) return std::nullopt;
  if (job.states.zero == 0) {
    return "--optimizer-instances with --zero 0: every rank has all states by itself";
  }
  const int dense = job.layout.sizes.group_size(GroupKind::data_context);
  const int expert = job.model->moe ? job.layout.sizes.group_size(GroupKind::expert_data) : 0;
  if (dense % instances == 0 && (expert < 2 || expert % instances == 0)) return std::nullopt;
  return fmt::format(
      "--optimizer-instances {}: must divide the ranks that have the same weights: {} (DP x CP){}",
      instances, dense, expert < 2 ? "" : fmt::format(", of experts {} (EDP)", expert));
}

Refusal copies_refusal(const TrainingJob& job) {
  if (job.redundant_experts == 0) return std::nullopt;
  const std::string flag = fmt::format("--redundant-experts {}", job.redundant_experts);
  if (!job.model->moe) return flag + ": the model has no experts";
  if (!job.routing) {
    return flag +
           ": with forced balance no expert is hot: draw routing, with --router or --routing";
  }
  const int ranks = job.layout.sizes.expert;
  if (job.held_experts() % ranks != 0) {
    const int more = (job.held_experts() / ranks + 1) * ranks - job.model->moe->experts;
    return fmt::format("{}: {} experts and copies do not divide among {} ranks (EP): {}", flag,
                       job.held_experts(), ranks, more);
  }
  // A rank has no use for two copies of one expert.
  const std::int64_t most = std::int64_t{job.model->moe->experts} * (ranks - 1);
  if (ranks == 1) {
    return fmt::format("{}: with --expert-parallel 1 a rank has all experts: leave it out", flag);
  }
  if (job.redundant_experts > most) {
    return fmt::format("{}: at most {}: each of {} ranks (EP) then has all {} experts", flag, most,
                       ranks, job.model->moe->experts);
  }
  if (drops_or_rectifies(job.routing->router) || job.routing->rank_capacity > 0) {
    return flag +
           " with a capacity or rectification: what copies of an expert drop is not simulated: "
           "leave the capacity out";
  }
  if (job.routing->scores.trace == nullptr) return std::nullopt;
  return flag +
         " with recorded routing: copies are placed by the load of other tokens with the same "
         "popularity, which a record does not tell: give generated --routing";
}

// What of linear attention these modules would copy is not known.
Refusal linear_offload_refusal(const TrainingJob& job) {
  if (!job.model->linear) return std::nullopt;
  using enum model::OffloadModule;
  model::Offload of_attention;
  for (const auto module : {qkv_linear, core_attn, attn_proj}) {
    if (job.offload.has(module)) of_attention.add(module);
  }
  if (of_attention.modules == 0) return std::nullopt;
  return fmt::format(
      "--offload {}: of the layers with linear attention it is not known: leave {} out",
      model::name_of(job.offload), model::name_of(of_attention));
}

Refusal offload_refusal(const TrainingJob& job) {
  if (job.offload.modules == 0) return std::nullopt;
  if (Refusal refusal = model::offload_refusal(job.offload, job.recompute)) return refusal;
  const std::string flag = fmt::format("--offload {}", model::name_of(job.offload));
  if (Refusal refusal = linear_offload_refusal(job)) return refusal;
  if (job.graphs == Graphs::layers) {
    return flag + " with --cuda-graphs layers: frameworks do not capture the copies";
  }
  if (!job.profile) return std::nullopt;  // of a layout alone no GPU is known
  const profile::Device& device = job.profile->device();
  if (device.host_bandwidth.bytes_per_second > 0 ||
      device.host_copy_bandwidth.bytes_per_second > 0) {
    return std::nullopt;
  }
  return fmt::format(
      "{}: the profile {} does not say how fast its GPU reaches the host's memory: add "
      "pcie_bytes_per_second to its device",
      flag, job.typed.profile.empty() ? job.profile->name() : job.typed.profile);
}

std::string dispatcher_flag(const TrainingJob& job) {
  return "--dispatcher " +
         (job.typed.dispatcher.empty() ? job.dispatcher->name : job.typed.dispatcher);
}

// What Megatron-Core runs with its all-to-all and flex dispatchers alone.
Refusal gather_refusal(const TrainingJob& job) {
  if (!job.gathers_tokens) return std::nullopt;
  const bool pads = job.routing ? job.routing->router.pads_exchange() : job.capacity_factor > 0;
  const char* const other = pads                         ? "a padded capacity: add --padding none"
                            : job.layout.expert_overlap  ? "--ep-overlap: leave it out"
                            : job.low_precision_dispatch ? "--dispatch-precision low: leave it out"
                            : job.routing && job.routing->rank_capacity > 0
                                ? "--rank-capacity: leave it out"
                                : nullptr;
  if (other == nullptr) return std::nullopt;
  return fmt::format(
      "--dispatcher allgather sends whole tokens, in bf16, before it is known which "
      "rows they have, and so not with {}; or take all-to-all",
      other);
}

// The ranks of an exchange of experts, slices among them, follow each other.
Refusal reach_refusal(const TrainingJob& job) {
  if (!job.dispatcher || !job.cluster || job.dispatcher->crosses_nodes()) return std::nullopt;
  const parallel::ParallelLayout& sizes = job.layout.sizes;
  const int ranks = sizes.expert * sizes.expert_tensor;
  const int domain = job.placed_ranks();
  if (sizes.gpus <= domain || domain % ranks == 0) return std::nullopt;
  return fmt::format(
      "{} works inside one NVLink domain: --expert-parallel {} x "
      "--expert-tensor-parallel {} = {} ranks lie in several, each of {}: take fewer, or a "
      "dispatcher that reaches other domains, such as deepep",
      dispatcher_flag(job), sizes.expert, sizes.expert_tensor, ranks, domain);
}

// The laws of dispatchers are of domains with as many ranks each, and with all slices of an expert.
Refusal spread_refusal(const TrainingJob& job) {
  if (!job.dispatcher || !job.cluster) return std::nullopt;
  const parallel::ParallelLayout& sizes = job.layout.sizes;
  const int ranks = sizes.expert * sizes.expert_tensor;
  if (ranks < 2) return std::nullopt;
  const profile::DispatchGroup group = dispatch_spread(job);
  if (group.crosses() && ranks % group.per_domain != 0) {
    return fmt::format(
        "{} needs as many ranks in each NVLink domain: --expert-parallel {} x "
        "--expert-tensor-parallel {} = {} ranks do not divide among {} domains",
        dispatcher_flag(job), sizes.expert, sizes.expert_tensor, ranks, group.domains());
  }
  if (group.per_domain % sizes.expert_tensor == 0) return std::nullopt;
  return fmt::format(
      "{} needs all slices of an expert in one NVLink domain: --expert-tensor-parallel {} does not "
      "divide {} ranks of a domain",
      dispatcher_flag(job), sizes.expert_tensor, group.per_domain);
}

// A router that is not drawn at all is for DrawnLoads to refuse.
Refusal drawing_refusal(const TrainingJob& job) {
  if (!job.routing || !draw_refusal(job.routing->router).empty()) return std::nullopt;
  const std::string misfit = routing_misfit(job);
  return misfit.empty() ? Refusal() : misfit;
}

}  // namespace

std::optional<std::string> option_refusal(const TrainingJob& job) {
  for (const auto rule : {rank_capacity_refusal, instances_refusal, copies_refusal, offload_refusal,
                          gather_refusal, reach_refusal, spread_refusal}) {
    if (Refusal refusal = rule(job)) return refusal;
  }
  return std::nullopt;
}

std::optional<std::string> expert_load_refusal(const TrainingJob& job) {
  if (job.expert_load <= 0) return std::nullopt;
  if (job.routing) {
    return "--expert-load with --capacity-factor or another option of routing: these decide the "
           "rows of experts: give one of them";
  }
  const double most = most_load(job);
  if (job.expert_load <= most) return std::nullopt;
  return fmt::format(
      "--expert-load {:g}: at most {:g} times balance on one of {} expert-parallel ranks, where "
      "all "
      "tokens choose experts of it: give a smaller load{}",
      job.expert_load, most, job.layout.sizes.expert, or_more_ranks(job, most));
}

std::optional<std::string> graphs_refusal(const TrainingJob& job) {
  if (job.graphs != Graphs::layers || !job.model->moe || job.dispatcher) return std::nullopt;
  if (!job.reads_row_counts()) return std::nullopt;
  return "--cuda-graphs layers: the host reads how many rows a dropless all-to-all brings: give "
         "--capacity-factor, or a --dispatcher, taken to have buffers for the worst case";
}

void check_decoder(const TrainingJob& job) {
  if (job.model->encoder_layers == 0) return;
  throw UsageError(fmt::format("--model {} has an encoder: the memory of decoders alone is known",
                               job.model->name));
}

void check_job(const TrainingJob& job) {
  check_ranges(job);
  TrainingJob changed = job;
  parallel::check_layout(*job.model, job.layout, [&](const parallel::LayoutRequest& request) {
    changed.layout = request;
    if (Refusal refusal = option_refusal(changed)) return refusal;
    return drawing_refusal(changed);
  });
}

}  // namespace moesim::training
