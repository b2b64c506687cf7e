#pragma once

#include "sim/model/megatron/megatron_arguments.hpp"

namespace moesim::tool {

// Arguments that change a step in a way that is not modelled, unlike those of is_idle_argument().
// Most are noted, as those without which the step is priced. Throws UsageError for those of which
// nothing near is modelled: attention that keeps its scores, other optimizers than Adam.
void check_effects(const model::MegatronArguments& given);

}  // namespace moesim::tool
