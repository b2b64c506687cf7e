#pragma once

#include "sim/scenario/document_cache.hpp"
#include "sim/study/validation/tables/validation.hpp"

namespace moesim::study {

// One published MoE layer, composed stage by stage (profiles/layers): no fitted constant.
Validation validate_layer(scenario::DocumentCache& documents);

}  // namespace moesim::study
