#include "sim/routing/jobs/fidelity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "sim/base/domain_parts.hpp"
#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/scores/score_model.hpp"
#include "sim/routing/tokens/tile_kernels.hpp"

namespace moesim::routing {

namespace {

// Below this, a token of the pilot is a considerable part of the tokens it is compared with.
constexpr std::int64_t least_tokens = 256;

bool has_token_types(const ScoreSource& scores) {
  return scores.model != nullptr && value_of(scores.model->token_type) > 0;
}

std::string refuse_scores(const RoutingJob& job) {
  const ScoreSource& scores = job.scores;
  if (job.is_ragged() && !is_sampled(job)) {
    return fmt::format("{} gives GPUs different numbers of tokens, each with its capacity",
                       scores.name());
  }
  if (!job.router.has_gate()) return "";
  if (scores.model != nullptr && scores.model->differs_between_ranks()) {
    return fmt::format("{} gives every GPU a popularity of its own", scores.name());
  }
  if (has_token_types(scores) && !is_sampled(job)) {
    return fmt::format("{} has types of tokens", scores.name());
  }
  if (scores.trace != nullptr) {
    const bool counted = scores.trace->kind() == Trace::Kind::counts;
    return fmt::format("{} has recorded {}", scores.name(), counted ? "counts" : "tokens");
  }
  if (scores.popularity == nullptr) return "";
  for (const std::vector<double>& layer : scores.popularity->layers()) {
    const auto chosen =
        std::count_if(layer.begin(), layer.end(), [](double share) { return share > 0; });
    if (chosen < job.router.choices()) {
      return fmt::format("{} has a layer of {} experts with tokens, fewer than the {} choices",
                         scores.name(), chosen, job.router.choices());
    }
  }
  return "";
}

// Whether a rectified token can only go to the single expert of its GPU. It then matters which
// tokens kept that expert: the pilot has their average share, not the share on the fullest GPU (2 %
// error in its rows with zipf:1.2).
bool may_lack_its_only_local(const RoutingJob& job) {
  const RouterConfig& router = job.router;
  if (router.rectification == Rectification::none || job.experts != job.expert_parallel) {
    return false;
  }
  const bool alone = router.rectification == Rectification::gpu || job.gpus_per_domain == 1;
  return alone && router.ir_duplicates == IrDuplicates::exclude && router.choices() > 1;
}

bool has_cut_groups(const RoutingJob& job) {
  return job.gpus_per_domain > 0 &&
         domains_cut_groups(job.gpus, job.expert_parallel, job.gpus_per_domain);
}

}  // namespace

std::string name_of(Fidelity value) { return name_in(fidelity_names, value); }

Fidelity parse_fidelity(std::string_view text, const std::string& where) {
  return value_in(fidelity_names, text, where);
}

double token_logits(const RoutingJob& job) {
  return static_cast<double>(job.tokens_per_gpu) * job.gpus * job.experts * job.layers;
}

std::int64_t most_tokens(Fidelity fidelity) {
  if (fidelity == Fidelity::counts) return std::int64_t{1} << 30;
  return std::numeric_limits<std::int32_t>::max() / max_choices;
}

bool is_sampled(const RoutingJob& job) {
  const RouterConfig& router = job.router;
  if (!router.has_gate() || router.kind->no_counts != nullptr) return false;
  if (router.drops) {
    return !router.takes_best() && router.chooses_top_k() && !router.fill_in &&
           router.rectification == Rectification::none &&
           router.capacity_scope == CapacityScope::source && !job.is_ragged();
  }
  return !router.takes_best() || job.count_copies || job.is_ragged() || has_token_types(job.scores);
}

std::string counts_refusal(const RoutingJob& job) {
  if (job.router.kind->no_counts != nullptr) {
    return fmt::format("counts are not for {}: {}", job.router.asked_name(),
                       job.router.kind->no_counts);
  }
  if (job.tokens_per_gpu < least_tokens && job.router.has_gate()) {
    return fmt::format("{} tokens per GPU are too few: counts start at {}", job.tokens_per_gpu,
                       least_tokens);
  }
  const bool drops = job.router.drops && !is_sampled(job);
  if (job.router.priority == Priority::token_order && drops) {
    return "with --priority token-order all choices of a token stand together in the queues, which "
           "counts do not model: they put `partial` off by up to 1.3 points";
  }
  if (drops && job.router.has_gate() && !job.router.takes_best()) {
    return fmt::format("which routes of {} a capacity {} is not worked out",
                       job.router.asked_name(),
                       job.router.fill_in || job.router.rectification != Rectification::none
                           ? "drops that are rectified"
                       : job.is_ragged() ? "drops on GPUs of different tokens"
                                         : "of the group drops");
  }
  if (job.count_copies && job.router.drops && job.router.choices() > 1) {
    return "with a capacity counts do not say which of a token's routes are kept, and so how many "
           "tokens a GPU or node needs";
  }
  if (job.count_copies && has_cut_groups(job)) {
    return fmt::format(
        "expert-parallel groups of {} GPUs lie across NVLink domains of {}, each in its own way",
        job.expert_parallel, job.gpus_per_domain);
  }
  if (job.router.rectification == Rectification::node && has_cut_groups(job)) {
    return fmt::format(
        "expert-parallel groups of {} GPUs lie across NVLink domains of {}, each in its own way",
        job.expert_parallel, job.gpus_per_domain);
  }
  if (may_lack_its_only_local(job)) {
    return fmt::format(
        "with --ir-duplicates exclude and one expert per GPU, {} rectifies only tokens that did "
        "not keep that expert, and counts do not tell which these are",
        job.router.asked_name());
  }
  return refuse_scores(job);
}

Fidelity choose_fidelity(Fidelity wanted, const RoutingJob& job) {
  if (wanted != Fidelity::automatic) return wanted;
  const bool possible =
      job.tokens_per_gpu <= most_tokens(Fidelity::tokens) / std::max(1, job.expert_parallel);
  const bool affordable = possible && token_logits(job) <= affordable_logits;
  return affordable || !counts_refusal(job).empty() ? Fidelity::tokens : Fidelity::counts;
}

}  // namespace moesim::routing
