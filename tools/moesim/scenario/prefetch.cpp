#include "tools/moesim/scenario/prefetch.hpp"

#include "sim/routing/simulation/route_ahead.hpp"
#include "tools/moesim/base/progress.hpp"

namespace moesim::tool {

void prefetch_routing(std::span<const routing::RoutingJob> jobs, int replicas, int threads,
                      routing::RoutingCache& cache) {
  const bool by_layer = routing::routed_unit(jobs) == routing::RoutedUnit::layer;
  ProgressLine line(by_layer ? "layers routed" : "replicas routed");
  routing::route_ahead(jobs, replicas, threads, cache,
                       [&](std::size_t done, std::size_t total) { line.show(done, total); });
  line.finish();
}

}  // namespace moesim::tool
