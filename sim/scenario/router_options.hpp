#pragma once

#include "sim/scenario/option_table.hpp"

namespace moesim::scenario {

// The options of the router; their fields are those of routing::RouterConfig.
void declare_router(OptionTable& table);
// Part of it: how scores of experts and groups are found.
void declare_router_scores(OptionTable& table);

// Above 0; throws UsageError.
Decimal parse_capacity_factor(const std::string& text);

}  // namespace moesim::scenario
