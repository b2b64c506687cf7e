#pragma once

#include <cstdint>

#include "sim/routing/rules/router_config.hpp"

namespace moesim::routing {

// Throws UsageError if the router cannot route `tokens` per rank (0: not known yet) over these
// experts and ranks. For all kinds: dense, k' > E or > 63, E % ranks != 0, groups that do not
// divide E or have fewer than k experts, options that the kind does not support; and whatever the
// kind refuses (RouterDescriptor::check).
void check_router(const RouterConfig& config, int experts, int ranks, std::int64_t tokens);

}  // namespace moesim::routing
