#pragma once

#include <string>

#include "sim/base/formats/csv.hpp"
#include "sim/routing/simulation/routing_cache.hpp"
#include "sim/scenario/document_cache.hpp"
#include "sim/study/validation/tables/validation.hpp"

namespace moesim::study {

// SmartMoE's steps on 16 GPUs (`table`: smartmoe_gpt_step_times.csv) once more, by software, with
// what they say themselves: two factors, on computation and on exchanges, are fitted to the steps
// of each software, and each step is predicted by a fit without it. Routing is recorded where it is
// (no balance loss: smartmoe_routing_trace.npz under `folder`, in the middle of the 200 timed
// iterations) and else drawn as uneven as in recorded trainings (`--routing unknown`), which also
// tells how large DeepSpeed's padding to the busiest expert is. Rows and figures are added to
// `validation`; nothing of them is shipped.
void add_calibrated_smartmoe(const std::string& folder, const CsvTable& table,
                             scenario::DocumentCache& documents, routing::RoutingCache& cache,
                             Validation& validation);

}  // namespace moesim::study
