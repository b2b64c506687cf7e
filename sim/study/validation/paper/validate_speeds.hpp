#pragma once

#include "sim/routing/simulation/routing_cache.hpp"
#include "sim/study/validation/paper/calibrate.hpp"
#include "sim/study/validation/tables/validation.hpp"

namespace moesim::study {

// The published speeds of the paper, its claims by name, and what einsum dispatch has to do with
// them (profiles/studies/zeng2024-speeds.json).
Validation validate_speeds(scenario::DocumentCache& documents, routing::RoutingCache& cache);
// Its routing, which is most of the work: a caller may have it done on many threads beforehand.
StudyRouting speeds_routing(scenario::DocumentCache& documents);

}  // namespace moesim::study
