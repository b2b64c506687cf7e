#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "sim/routing/jobs/layer_routing.hpp"
#include "sim/routing/jobs/routing_job.hpp"

namespace moesim::routing {

// Throws UsageError for a job whose scores are a trace (job.scores.trace) that does not fit it:
// other experts, more layers or ranks, too few tokens, or a router that needs data that the trace
// does not have (local experts or further choices of a trace of choices, an order by probability
// where none is recorded, experts where counts are per rank).
void check_trace(const RoutingJob& job);

// The routes of one GPU, or of a group that shares its capacity, from their counts alone: every
// drop order keeps min(count, slots) of an expert's primary routes.
struct CountedRoutes {
  std::int64_t routes = 0;
  std::int64_t failed = 0;  // sum of max(0, count - slots)
};
CountedRoutes count_routes(std::span<const std::int64_t> counts, std::int64_t slots);

// Whether the loads of a job are recorded counts instead of drawn: trace:FILE with counts per
// expert.
bool has_exact_counts(const RoutingJob& job);

// The weights that the token loss of recorded routing is computed with, where none were recorded:
// "drawn weights" of counts, which do not say either which routes are of one token; "equal weights"
// of choices without probabilities. "" where they were recorded, nothing is, no capacity drops
// routes, or a token has one route, which is lost whatever its weight.
std::string loss_basis(const ScoreSource& scores, const RouterConfig& router);

// Replaces the values drawn from the popularity of the recorded counts by the counts themselves:
// `failed` and `demand`; without fill-in `padded`; and without fill-in, under `source` scope or
// without a capacity, `kept_rows` and the blocks of a padded exchange. With fill-in the nominees
// stay as drawn, at most as many as the recorded routes leave slots: `failed_attempted` and
// `padded` follow. Masses and partial tokens are as drawn times recorded over drawn `failed`, of
// one route per token `failed` itself; IR rows stay as drawn.
void take_exact_counts(const RoutingJob& job, int replica, int layer, LayerRouting& result);

}  // namespace moesim::routing
