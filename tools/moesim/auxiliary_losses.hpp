#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "sim/scenario/scenario.hpp"
#include "tools/moesim/command.hpp"

namespace moesim::tool {

// --losses of route and simulate.
Flag losses_flag();
// Balance losses and z-loss: means over the layers of the first replica, and each layer. Throws
// UsageError for routing that has none (sim/routing/simulation/job_losses.hpp).
nlohmann::ordered_json auxiliary_detail(const scenario::Scenario& scenario);
// The means as lines of a table.
std::string auxiliary_lines(const nlohmann::ordered_json& losses);

}  // namespace moesim::tool
