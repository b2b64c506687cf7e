#pragma once

#include "tools/moesim/megatron/megatron_input.hpp"

namespace moesim::tool {

// --virtual-pipeline and --pipeline-layout of the file, by Megatron-Core's rules for uneven first
// and last stages, for embedding and loss counted as layers and for multi-token prediction. Throws
// UsageError naming file, line and argument.
void take_stages(MegatronInput& input);

}  // namespace moesim::tool
