#pragma once

#include <cstdint>

#include "sim/routing/rules/router_config.hpp"

namespace moesim::routing {

// Throws UsageError when the router cannot route `tokens` a rank (0: not known yet) over these
// experts and ranks, whatever its kind: dense, k' > E or > 63, E % ranks, groups that do not divide
// E or hold fewer than k experts, options that its kind does not take, and what its kind refuses
// (RouterDescriptor::check).
void check_router(const RouterConfig& config, int experts, int ranks, std::int64_t tokens);

}  // namespace moesim::routing
