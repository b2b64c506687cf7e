#include "sim/training/job/training_job.hpp"

#include <cmath>

#include <boost/math/special_functions/erf.hpp>

#include "sim/routing/routers/router_name.hpp"

namespace moesim::training {

int TrainingJob::experts_per_token() const {
  if (routing) return routing->router.top_k;
  if (choices > 0) return choices;
  return model->moe ? model->moe->top_k : 0;
}

bool TrainingJob::fills_in() const { return routing ? routing->router.fill_in : forced_fill_in; }

KeptGroups TrainingJob::kept_groups() const {
  if (routing) return {routing->router.groups, routing->router.kept_groups};
  if (forced_groups) return *forced_groups;
  if (!model->moe) return {};
  const routing::RouterConfig own = routing::parse_router(model->moe->router, model->moe->top_k);
  return {own.groups, own.kept_groups};
}

bool TrainingJob::reads_row_counts() const {
  if (!routing) return capacity_factor <= 0 && !has_row_buffer;
  // The longest block of all ranks is the shape of the tensors.
  const bool known = routing->router.counts_known() && !routing->router.pads_to_busiest();
  return routing->rank_capacity <= 0 && !known;
}

TrainingJob with_forced_balance(const TrainingJob& job) {
  TrainingJob forced = job;
  forced.routing.reset();
  forced.choices = job.experts_per_token();
  forced.forced_groups = job.kept_groups();
  forced.capacity_factor = forced.expert_load = 0;
  forced.redundant_experts = 0;
  forced.has_row_buffer = job.routing && job.routing->rank_capacity > 0;
  forced.forced_fill_in = job.fills_in();
  return forced;
}

TrainingJob with_random_logits(const TrainingJob& job) {
  TrainingJob random = job;
  routing::RouterConfig& router = random.routing->router;
  // Recorded steps are routed one after another; all micro-batches together may be too many.
  if (job.routing->scores.trace != nullptr) random.routing->draws = RoutingDraws::per_layer;
  random.routing->scores = {};
  random.routing->trace_step = 0;
  random.routing->scores.parameter = 0;  // gaussian
  router.expert_bias.reset();
  if (!router.has_gate()) {  // some hashed experts are popular too
    router.kind = routing::parse_router("random", router.top_k).kind;
    router.parameters = {};
  }
  random.redundant_experts = 0;
  return random;
}

double capacity_load(const TrainingJob& job) {
  const routing::RouterConfig& router = job.routing->router;
  if (!router.pads_exchange() || !router.has_capacity() || router.kind->skips_exchange ||
      router.capacity_scope != routing::CapacityScope::source) {
    return 0;
  }
  const std::int64_t slots =
      router.capacity(std::llround(job.tokens_per_rank()), job.experts()) * job.experts();
  return static_cast<double>(slots) / job.balanced_rows();
}

bool ignores_draws(const TrainingJob& job) {
  return capacity_load(job) > 0 && !job.dispatcher &&
         job.routing->router.rectification == routing::Rectification::none;
}

TrainingJob without_recompute(const TrainingJob& job) {
  TrainingJob kept = job;
  kept.recompute = {};
  kept.layout.recomputes_experts = false;
  return kept;
}

const char* product_type(model::Precision precision) {
  switch (precision) {
    case model::Precision::bf16:
      break;
    case model::Precision::fp8_delayed:
    case model::Precision::fp8_current:
    case model::Precision::mxfp8:
      return "fp8";
    case model::Precision::fp8_block:
      return "fp8_block";
    case model::Precision::nvfp4:
      return "nvfp4";
  }
  return profile::default_data_type;
}

double TrainingJob::dispatched_element_bytes() const {
  const bool sends_rows = model->moe && exchanging_ranks() > 1;
  const bool is_low = low_precision_dispatch && sends_rows;
  return model::element_bytes(is_low ? states.precision : model::Precision::bf16);
}

model::ActivationRules TrainingJob::activation_rules(double load) const {
  model::ActivationRules rules;
  rules.precision = states.precision;
  rules.recompute = recompute;
  rules.offload = offload;
  rules.choices = experts_per_token();
  rules.load = rules.layer_load = load;
  rules.sequence_parallel = layout.sequence_parallel;
  rules.fp8_attention = fp8_attention;
  rules.fused_experts = fused_experts;
  rules.length = static_cast<double>(layout.sequence_length);
  rules.dispatched_element = dispatched_element_bytes();
  return rules;
}

int TrainingJob::experts() const { return model->moe ? model->moe->experts : 0; }

int TrainingJob::held_experts() const { return model->moe ? experts() + redundant_experts : 0; }

std::string TrainingJob::gpu_name() const {
  const std::string& device = profile->device().name;
  return cluster->gpu_title(device, device);
}

int TrainingJob::placed_ranks() const {
  if (ranks_per_domain > 0) return ranks_per_domain;
  const int most = cluster->gpus_per_domain;
  if (layout.sizes.gpus <= most) return most;
  int ranks = 1;
  while (2 * ranks <= most) ranks *= 2;
  return ranks;
}

double TrainingJob::tokens() const {
  return static_cast<double>(layout.micro_batch * layout.sequence_length) / layout.sizes.context;
}

double TrainingJob::tokens_per_rank() const {
  return layout.sequence_parallel ? tokens() / layout.sizes.tensor : tokens();
}

double TrainingJob::balanced_rows() const { return experts_per_token() * tokens_per_rank(); }

bool TrainingJob::exchanges_slices() const { return dispatcher != nullptr || gathers_tokens; }

int TrainingJob::exchanging_ranks() const {
  return layout.sizes.expert * (exchanges_slices() ? layout.sizes.expert_tensor : 1);
}

model::ShardSizes TrainingJob::shards() const {
  const parallel::ParallelLayout& sizes = layout.sizes;
  const bool comes_from_both_ends =
      layout.schedule == parallel::ScheduleKind::dualpipe && sizes.pipeline > 1;
  return {sizes.tensor,
          sizes.context,
          sizes.expert,
          sizes.expert_tensor,
          sizes.data(),
          sizes.expert_data(),
          comes_from_both_ends ? 2 : 1};
}

ForcedLoad forced_load(const TrainingJob& job) {
  if (!job.model->moe || job.capacity_factor > 0) return {};
  if (job.expert_load > 0) return {job.expert_load, job.expert_load};
  const parallel::ParallelLayout& sizes = job.layout.sizes;
  const auto busiest = [&](double tokens) {
    return random_imbalance(job.model->moe->experts, job.experts_per_token(), sizes.expert, tokens);
  };
  return {busiest(job.tokens_per_rank() * sizes.expert_tensor), busiest(job.tokens_per_rank())};
}

double random_imbalance(int experts, int choices, int ranks, double tokens) {
  if (ranks <= 1) return 1;
  const double share = 1.0 / ranks;
  // The variance of how many choices of one token fall on one rank's experts (hypergeometric).
  const double variance = choices * share * (1 - share) * (experts - choices) / (experts - 1.0);
  const double deviation = std::sqrt(variance * ranks * tokens) / (choices * tokens);
  const double largest = (ranks - 0.375) / (ranks + 0.25);
  return 1 + deviation * std::sqrt(2) * boost::math::erf_inv(2 * largest - 1);
}

}  // namespace moesim::training
