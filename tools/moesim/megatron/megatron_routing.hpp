#pragma once

#include "tools/moesim/megatron/megatron_input.hpp"

namespace moesim::tool {

// --padding and --priority of a router with a capacity, --score-function and --group-score of the
// model's own, by Megatron-Core's rules. Throws UsageError naming file, line and argument for a
// drop policy that is not known, and naming the typed lists whose points drop by different
// priorities.
void take_routing(MegatronInput& input);

}  // namespace moesim::tool
