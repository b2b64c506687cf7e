#include "sim/routing/simulation/popular_load.hpp"

#include "sim/routing/jobs/shared_scores.hpp"
#include "sim/routing/scores/logit_source.hpp"
#include "sim/routing/simulation/busiest_load.hpp"

namespace moesim::routing {
namespace {

bool is_drawn(const ScoreSource& source) {
  using Kind = ScoreSource::Kind;
  switch (source.kind) {
    case Kind::gaussian:
    case Kind::dirichlet:
    case Kind::zipf:
    case Kind::unknown:
    case Kind::burst:
      return true;
    default:
      return false;
  }
}

double layer_load(const RoutingJob& job, int replica, int layer) {
  const LogitSource source(job.scores, logit_shape(job), job.seed,
                           static_cast<std::uint32_t>(replica), static_cast<std::uint32_t>(layer));
  return busiest_load(source.offsets(), source.noise(), job.expert_parallel, job.router.top_k);
}

}  // namespace

bool has_popular_loads(const RoutingJob& job) {
  return is_drawn(job.scores) && job.expert_parallel > 1;
}

std::vector<double> popular_loads(const RoutingJob& job, int first, int count) {
  std::vector<double> loads;
  if (!has_popular_loads(job)) return loads;
  for (int replica = first; replica < first + count; ++replica) {
    double sum = 0;
    for (int layer = 0; layer < job.layers; ++layer) sum += layer_load(job, replica, layer);
    loads.push_back(sum / job.layers);
  }
  return loads;
}

}  // namespace moesim::routing
