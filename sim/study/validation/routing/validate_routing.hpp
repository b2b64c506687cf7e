#pragma once

#include <string>
#include <vector>

#include "sim/routing/simulation/routing_cache.hpp"
#include "sim/study/validation/tables/validation.hpp"

namespace moesim::study {

// Token loss against public tables under `folder`, those of them that are there, at least one:
//   routing_bench_drop_rate.csv   routes lost of random logits (moe-routing-bench), each row one
//                                 draw: inside the range of 199 simulated draws, which the next
//                                 draw leaves in 2 / 200 = 1 % of cases; mean error at most 0.05
//                                 percentage points
//   expert_counts.csv             OLMoE's counts per domain: lost as counted directly, and on c4
//                                 the published 15.1 and 7.3 %
//   smartmoe_routing_trace.npz    counts of a training run: lost as counted directly
// Throws UsageError when none is there.
Validation validate_routing(const std::string& folder, routing::RoutingCache& cache);

// The random draws, which are most of the work: a caller may have them done on many threads
// beforehand. Empty without the first table.
std::vector<routing::RoutingJob> random_draw_jobs(const std::string& folder);

}  // namespace moesim::study
