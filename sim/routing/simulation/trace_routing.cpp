#include "sim/routing/simulation/trace_routing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/routing/jobs/group_blocks.hpp"
#include "sim/routing/rules/routing_refusal.hpp"
#include "sim/routing/scores/logit_source.hpp"

namespace moesim::routing {

namespace {

[[noreturn]] void refuse(const Trace& trace, const std::string& reason) {
  throw UsageError(fmt::format("{}: {}", trace.file(), reason));
}

void check_sizes(const RoutingJob& job, const Trace& trace) {
  const TraceShape& shape = trace.shape();
  if (trace.per() == Trace::Per::rank &&
      (job.experts != shape.experts || job.expert_parallel != shape.experts)) {
    throw RoutingRefusal([&](const RoutingTerms& terms) {
      return fmt::format(
          "{}: it counts rows per receiving GPU, {} of them, not per expert: choose "
          "--expert-parallel {} and {}{}, so that one expert stands for all of a GPU",
          trace.file(), shape.experts, shape.experts, terms.experts, shape.experts);
    });
  }
  if (job.experts != shape.experts) {
    refuse(
        trace,
        fmt::format("it has {} experts, the job {}: choose a --model with as many, or --experts {} "
                    "of simulate, sweep and route",
                    shape.experts, job.experts, shape.experts));
  }
  if (shape.layers > job.layers) {
    refuse(trace, fmt::format("it has {} MoE layers, the model {}: choose a --model with as many, "
                              "or keep fewer layers in the trace",
                              shape.layers, job.layers));
  }
  if (shape.ranks > job.gpus) {
    refuse(trace, fmt::format("it has {} ranks, the job {} GPUs: choose --gpus {} or a multiple",
                              shape.ranks, job.gpus, shape.ranks));
  }
  if (job.scores.kind == ScoreSource::Kind::trace_repeat) return;
  const bool counts = trace.kind() == Trace::Kind::counts;
  if (counts ? job.tokens_per_gpu == shape.tokens : job.tokens_per_gpu <= shape.tokens) return;
  throw RoutingRefusal([&](const RoutingTerms& terms) {
    return fmt::format(
        "{}: it holds {} {} tokens {}, the job has {}: choose {}{}, or --routing trace-repeat:{}, "
        "which {}",
        trace.file(), counts ? "counts of" : "the routing of", shape.tokens,
        terms.per_rank_and_layer, job.tokens_per_gpu, terms.tokens, shape.tokens, job.scores.file,
        counts ? "draws any number of tokens from their popularity"
               : "starts again from the first token");
  });
}

void check_choices(const RouterConfig& router, const Trace& trace) {
  if (!router.takes_best()) {
    refuse(trace, fmt::format("it holds each token's choices, and --router {} makes choices of its "
                              "own: choose top1, top2, ... or dropless, or record logits",
                              router.asked_name()));
  }
  if (router.rectification != Rectification::none) {
    refuse(trace,
           "it holds each token's choices, not its scores of the experts on its own GPU, which +ir "
           "picks from: leave +ir out, or record logits");
  }
  if (router.choices() > trace.shape().top_k) {
    refuse(trace,
           fmt::format("it holds {} choices per token, {} needs {}: choose a smaller k{}, or "
                       "record more choices",
                       trace.shape().top_k, router.asked_name(), router.choices(),
                       router.fill_in ? " or leave +fr out" : ""));
  }
  if (trace.has_probabilities()) return;
  if (!router.has_capacity()) return;
  const bool ordered = router.priority == Priority::token_max || router.sorts_own_queue();
  if (ordered) {
    refuse(trace, fmt::format("it holds no probabilities, which --priority {} sorts tokens by: "
                              "choose --priority position, token-order or random, or record them",
                              name_of(router.priority)));
  }
  if (router.fill_in && router.fill_order == FillOrder::nominee_score) {
    refuse(trace,
           "it holds no probabilities, which --fill-order nominee-score sorts nominees by: choose "
           "--fill-order priority, or record them");
  }
}

}  // namespace

void check_trace(const RoutingJob& job) {
  const Trace& trace = *job.scores.trace;
  check_sizes(job, trace);
  if (trace.kind() == Trace::Kind::choices) check_choices(job.router, trace);
  if (has_exact_counts(job) && job.router.top_k != trace.shape().top_k) {
    refuse(trace, fmt::format(
                      "it counts the {} experts of each token, the router has k = {}: choose "
                      "--router topk --top-k {}, or --routing trace-repeat:{}, which draws tokens "
                      "from their popularity",
                      trace.shape().top_k, job.router.top_k, trace.shape().top_k, job.scores.file));
  }
}

CountedRoutes count_routes(std::span<const std::int64_t> counts, std::int64_t slots) {
  CountedRoutes sum;
  for (const std::int64_t count : counts) {
    sum.routes += count;
    sum.failed += std::max<std::int64_t>(0, count - slots);
  }
  return sum;
}

bool has_exact_counts(const RoutingJob& job) {
  return job.scores.trace != nullptr && job.scores.trace->kind() == Trace::Kind::counts &&
         job.scores.kind == ScoreSource::Kind::trace && job.router.takes_best();
}

namespace {

// Whether a token has one route alone, to its best expert: it is lost with it, whatever its weight.
bool loses_whole_tokens(const RouterConfig& router) {
  return router.top_k == 1 && router.takes_best() && !router.fill_in &&
         router.rectification == Rectification::none;
}

}  // namespace

std::string loss_basis(const ScoreSource& scores, const RouterConfig& router) {
  if (!router.has_capacity() || !router.scores_experts() || loses_whole_tokens(router)) return "";
  if (scores.kind == ScoreSource::Kind::counts) return "drawn weights";
  if (scores.trace == nullptr) return "";
  const Trace& trace = *scores.trace;
  if (trace.kind() == Trace::Kind::counts) return "drawn weights";
  const bool has_weights = trace.kind() == Trace::Kind::logits || trace.has_probabilities();
  return has_weights ? "" : "equal weights";
}

namespace {

// Sets the losses under a capacity that fill-in uses up: what failed is recorded, `fill_failed`
// drawn, and the other shares follow from the two. Recorded routes may leave fewer slots than the
// drawn nominees took.
void set_filled_losses(const RoutingJob& job, const CountedRoutes& recorded, double slots,
                       TokenLoss& loss) {
  const double nominations = static_cast<double>(job.tokens_per_gpu) * job.gpus;
  const auto routes = static_cast<double>(recorded.routes);
  const auto kept = static_cast<double>(recorded.routes - recorded.failed);
  const double drawn = (1 - loss.fill_failed.value_or(1)) * nominations;
  const double filled = std::min(drawn, slots - kept);
  loss.fill_failed = 1 - filled / nominations;
  loss.failed_attempted = 1 - (kept + filled) / (routes + nominations);
  loss.padded = slots > 0 ? (slots - kept - filled) / slots : 0;
}

// Sets what the capacity drops to the recorded share, and the losses of tokens, which are drawn, in
// proportion: their routes are lost as often as the recorded ones. Where none was drawn, each lost
// route is that of another token, and has a k-th of its weight.
void set_recorded_losses(const RouterConfig& router, double failed, TokenLoss& loss) {
  if (loss.failed > 0) {
    const double ratio = failed / loss.failed;
    for (double* share : {&loss.partial, &loss.lost_mass, &loss.unrouted, &loss.residual_loss}) {
      *share = std::min(1.0, *share * ratio);
    }
  } else {
    loss.partial = std::min(1.0, router.top_k * failed);
    loss.lost_mass = loss.residual_loss = failed;
  }
  loss.failed = failed;
  if (loses_whole_tokens(router)) loss.partial = loss.unrouted = loss.residual_loss = failed;
}

}  // namespace

void take_exact_counts(const RoutingJob& job, int replica, int layer, LayerRouting& result) {
  const Trace& trace = *job.scores.trace;
  const TraceShape& shape = trace.shape();
  const bool by_source = job.router.capacity_scope == CapacityScope::source;
  const bool limited = job.router.has_capacity();
  const int domain_gpus = by_source ? 1 : job.expert_parallel;
  const auto experts = static_cast<std::size_t>(job.experts);
  const std::int64_t slots = limited ? result.capacity : shape.tokens * shape.top_k;
  CountedRoutes all;
  std::vector<std::int64_t> sum(experts);
  std::fill(result.demand.begin(), result.demand.end(), std::int64_t{0});
  for (int gpu = 0; gpu < job.gpus; ++gpu) {
    const std::span<const std::int64_t> recorded = trace.counts(
        replica % shape.steps, recorded_rank(gpu, job.expert_parallel, job.slices, shape.ranks),
        layer % shape.layers);
    std::vector<std::int64_t> counts(recorded.begin(), recorded.end());
    if (job.expert_placement != nullptr)
      put_in_placement(job.expert_placement->expert_at(layer), counts);
    if ((by_source || !limited) && !job.router.fill_in) {
      const auto row = result.kept_rows.begin() + static_cast<std::ptrdiff_t>(gpu) * job.experts;
      std::transform(counts.begin(), counts.end(), row, [&](std::int64_t count) {
        return static_cast<std::int32_t>(std::min(count, slots));
      });
    }
    if (gpu % domain_gpus == 0) std::fill(sum.begin(), sum.end(), std::int64_t{0});
    for (std::size_t expert = 0; expert < experts; ++expert) {
      sum[expert] += counts[expert];
      result.demand[expert] += counts[expert];
    }
    if (gpu % domain_gpus != domain_gpus - 1) continue;
    const CountedRoutes domain = count_routes(sum, slots * domain_gpus);
    all.routes += domain.routes;
    all.failed += domain.failed;
  }
  set_recorded_losses(job.router, static_cast<double>(all.failed) / static_cast<double>(all.routes),
                      result.loss);
  const double room = static_cast<double>(slots) * job.gpus * job.experts;
  if (job.router.pads_to_busiest()) {
    pad_to_busiest(job, result);
  } else if (!limited) {
    set_largest_kept(job, result);
  } else if (job.router.fill_in) {
    set_filled_losses(job, all, room, result.loss);
  } else {
    const auto kept = static_cast<double>(all.routes - all.failed);
    result.loss.padded = room > 0 ? (room - kept) / room : 0;
  }
}

}  // namespace moesim::routing
