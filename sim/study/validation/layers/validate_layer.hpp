#pragma once

#include "sim/study/validation/tables/validation.hpp"

namespace moesim::study {

// Published MoE layers (profiles/layers), each pass in parts, as `train` prices them: no constant
// is fitted to them.
Validation validate_layer();

}  // namespace moesim::study
