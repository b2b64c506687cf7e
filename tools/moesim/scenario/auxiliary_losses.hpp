#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/tokens/losses.hpp"
#include "sim/scenario/scenario.hpp"
#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// --losses of route and simulate.
Flag losses_flag();
routing::AuxiliaryLosses mean_of(const std::vector<routing::AuxiliaryLosses>& losses);
// [layer] the mean over `replicas`, found by up to `jobs` threads. `sequence_tokens` and errors: as
// routing::auxiliary_losses (sim/routing/simulation/job_losses.hpp).
std::vector<routing::AuxiliaryLosses> losses_of_layers(const routing::RoutingJob& job, int replicas,
                                                       int jobs, std::int64_t sequence_tokens = 0);
// Balance losses and z-loss: means over layers and replicas, and each layer. Throws UsageError for
// routing that has none.
nlohmann::ordered_json auxiliary_detail(const scenario::Scenario& scenario, int jobs);
// The means as lines of a table.
std::string auxiliary_lines(const nlohmann::ordered_json& losses);

}  // namespace moesim::tool
