#pragma once

#include <cstdint>
#include <string>

#include "sim/routing/rules/expert_placement.hpp"
#include "sim/routing/rules/router_config.hpp"

namespace moesim::routing {

// Throws UsageError if the router cannot route `tokens` per rank (0: not known yet) over these
// experts and ranks. For all kinds: dense, k' > E or > 63, E % ranks != 0, groups that do not
// divide E or have fewer than k experts, options that the kind does not support; and whatever the
// kind refuses (RouterDescriptor::check).
void check_router(const RouterConfig& config, int experts, int ranks, std::int64_t tokens);

// Throws UsageError if the router's experts cannot be placed so: another number of them, none that
// are scored, or groups of neighbouring experts.
void check_placement(const RouterConfig& config, const ExpertPlacement& placement, int experts);
[[noreturn]] void refuse_placement(const std::string& why);

}  // namespace moesim::routing
