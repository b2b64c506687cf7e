#pragma once

#include "tools/moesim/megatron/megatron_input.hpp"

namespace moesim::tool {

// Sets --profile to the GPUs that Megatron-Bridge's --gpu names, unless it or --cluster was typed,
// and notes that --software knows that framework. Not without `is_priced`, where a command prices
// no kernels.
void take_bridge(MegatronInput& input, bool is_priced);

}  // namespace moesim::tool
