#include "tests/support/count_distance.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/routing/count_router.hpp"
#include "sim/routing/layer_router.hpp"
#include "sim/routing/load.hpp"

namespace moesim::routing {

namespace {

constexpr double loss_bar = 0.2;  // percentage points
constexpr double rows_bar = 1.0;  // per cent of the busiest GPU's rows

std::string title(const RouterConfig& router) {
  std::string text = fmt::format("{} CF {} k {} {}", router.name(), router.capacity_factor.text(),
                                 name_of(router.priority), name_of(router.capacity_scope));
  if (router.fill_in) text += " " + name_of(router.fill_order);
  if (router.ir_duplicates == IrDuplicates::exclude) text += " exclude";
  return text;
}

struct Figures {
  std::vector<double> losses;
  double busiest = 0;
};

Figures figures_of(const RoutingJob& job, const LayerRouting& layer) {
  const TokenLoss& loss = layer.loss;
  const std::vector<std::int64_t> rows = computed_rows(job, layer);
  return {{loss.failed, loss.partial, loss.lost_mass, loss.fill_failed.value_or(0),
           loss.failed_attempted.value_or(0), loss.unrouted, loss.residual_loss, loss.padded,
           loss.duplicate_ir.value_or(0)},
          static_cast<double>(*std::max_element(rows.begin(), rows.end()))};
}

struct Mean {
  double sum = 0, squares = 0, count = 0;

  void add(double value) {
    sum += value;
    squares += value * value;
    count += 1;
  }
  double mean() const { return sum / count; }
  double error() const {
    const double variance = std::max(0.0, squares / count - mean() * mean());
    return std::sqrt(variance / std::max(1.0, count - 1));
  }
};

}  // namespace

std::string DistanceShape::name() const {
  return fmt::format("{}, E {}, S {}, {} GPUs, P {}", scores, experts, tokens, gpus,
                     expert_parallel);
}

std::vector<RouterConfig> distance_routers(int experts) {
  std::vector<RouterConfig> routers;
  const auto add = [&](int top_k, const char* suffix, const char* factor, Priority priority,
                       CapacityScope scope, FillOrder order, IrDuplicates duplicates) {
    RouterConfig router = parse_router(fmt::format("top{}{}", top_k, suffix), 0, top_k);
    router.capacity_convention = CapacityConvention::library;
    router.capacity_factor = Decimal::parse(factor, "factor");
    router.priority = priority;
    router.capacity_scope = scope;
    router.fill_order = order;
    router.ir_duplicates = duplicates;
    routers.push_back(router);
  };
  using enum Priority;
  constexpr auto source = CapacityScope::source;
  constexpr auto group = CapacityScope::group;
  constexpr auto nominee = FillOrder::nominee_score;
  constexpr auto by_priority = FillOrder::priority;
  constexpr auto allow = IrDuplicates::allow;
  constexpr auto exclude = IrDuplicates::exclude;
  for (const int top_k : {1, 2, 4, 8}) {
    if (top_k >= experts) continue;
    for (const char* factor : {"0.5", "1", "1.25", "3"}) {
      add(top_k, "", factor, token_max, source, nominee, allow);
    }
    for (const Priority priority : {own_score, position, random}) {
      add(top_k, "", "1", priority, source, nominee, allow);
      add(top_k, "", "1", priority, group, nominee, allow);
    }
    add(top_k, "", "1", token_max, group, nominee, allow);
    add(top_k, "", "1", own_weight, source, nominee, allow);
    add(top_k, "+fr", "1", token_max, source, nominee, allow);
    add(top_k, "+fr", "1", token_max, source, by_priority, allow);
    add(top_k, "+fr", "1.25", own_score, source, nominee, allow);
    add(top_k, "+fr", "1", position, group, by_priority, allow);
    add(top_k, "+ir", "1", token_max, source, nominee, allow);
    add(top_k, "+ir", "1", position, source, nominee, exclude);
    add(top_k, "+ir", "1", position, group, nominee, allow);
    add(top_k, "+ir@node", "1", token_max, source, nominee, allow);
    add(top_k, "+fr+ir", "1", token_max, source, nominee, allow);
    add(top_k, "+fr+ir", "0.5", token_max, source, by_priority, allow);
    add(top_k, "+fr+ir@node", "1", token_max, group, nominee, exclude);
  }
  return routers;
}

std::vector<Distance> count_distances(const DistanceShape& shape,
                                      const std::vector<RouterConfig>& routers) {
  static const char* const names[] = {"failed",        "partial",          "lost_mass",
                                      "fill_failed",   "failed_attempted", "unrouted",
                                      "residual_loss", "padded",           "duplicate_ir"};
  std::vector<RoutingJob> jobs;
  for (const RouterConfig& router : routers) {
    RoutingJob job;
    job.router = router;
    job.scores = parse_score_source(shape.scores, "scores");
    job.experts = shape.experts;
    job.gpus = shape.gpus;
    job.expert_parallel = shape.expert_parallel;
    job.gpus_per_domain = 8;
    job.tokens_per_gpu = shape.tokens;
    job.layers = shape.layers;
    if (counts_refusal(job).empty()) jobs.push_back(job);
  }
  constexpr std::size_t losses = std::size(names);
  std::vector<std::vector<Mean>> tokens(jobs.size(), std::vector<Mean>(losses + 1));
  std::vector<std::vector<Mean>> off = tokens;
  LayerRouter by_tokens;
  CountRouter by_counts;
  std::vector<LayerRouting> exact(jobs.size()), fast(jobs.size());
  for (int layer = 0; layer < shape.layers; ++layer) {
    by_tokens.route(jobs, 0, layer, exact);
    by_counts.route(jobs, 0, layer, fast);
    for (std::size_t job = 0; job < jobs.size(); ++job) {
      const Figures want = figures_of(jobs[job], exact[job]);
      const Figures got = figures_of(jobs[job], fast[job]);
      for (std::size_t at = 0; at < losses; ++at) {
        tokens[job][at].add(100 * want.losses[at]);
        off[job][at].add(100 * (got.losses[at] - want.losses[at]));
      }
      tokens[job][losses].add(want.busiest);
      off[job][losses].add(100 * (got.busiest / want.busiest - 1));
    }
  }
  std::vector<Distance> distances;
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    Distance& distance = distances.emplace_back();
    distance.router = title(jobs[job].router);
    for (std::size_t at = 0; at <= losses; ++at) {
      const bool rows = at == losses;
      distance.metrics.push_back({rows ? "busiest GPU" : names[at], tokens[job][at].mean(),
                                  off[job][at].mean(), off[job][at].error(),
                                  rows ? rows_bar : loss_bar});
    }
  }
  return distances;
}

std::vector<DistanceShape> quick_shapes() {
  return {{"gaussian:0.1", 8, 16, 8, 2048, 8},
          {"zipf:0.8", 64, 8, 8, 1024, 8},
          {"dirichlet:0.3", 16, 16, 8, 1024, 8}};
}

std::vector<DistanceShape> all_shapes() {
  std::vector<DistanceShape> shapes;
  for (const char* scores :
       {"gaussian:0.1", "gaussian:1", "zipf:0.5", "zipf:1.2", "dirichlet:0.3", "dirichlet:2"}) {
    for (const int experts : {8, 32, 64, 256}) {
      for (const std::int64_t tokens : {1024, 4096, 16384}) {
        const std::int64_t logits = tokens * 16 * experts;
        const auto layers = static_cast<int>(std::clamp<std::int64_t>((1 << 29) / logits, 16, 96));
        shapes.push_back({scores, experts, 16, experts == 8 ? 8 : 16, tokens, layers});
      }
    }
  }
  return shapes;
}

}  // namespace moesim::routing
