#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/study/sweep/result_row.hpp"

namespace moesim::report {

// A part for a reader: "dense FFN".
const char* part_label(step::StepPart part);

// One scenario for a reader: what it is, its speed with error bars, where the time goes, what the
// router loses, memory.
std::string simulate_summary(const scenario::Scenario& scenario, const study::Outcome& outcome);

// The losses of a router run alone, over `layers` MoE layers, and how uneven its work is; of
// `outcome` the capacity and the losses, `detail` of routing_detail().
std::string route_summary(const scenario::Scenario& scenario, const study::Outcome& outcome,
                          std::size_t layers, const nlohmann::ordered_json& detail);

// One line per row of study::result_columns(): the options that vary and the figures that matter
// most.
std::string sweep_summary(const std::vector<study::Row>& rows);

// The detail that a JSON result nests below its columns: replicas, layers, memory parts.
nlohmann::ordered_json outcome_detail(const study::Outcome& outcome);

}  // namespace moesim::report
