#pragma once

#include <string>

#include "sim/study/validation/tables/validation.hpp"

namespace moesim::study {

// Holds the laws of sim/profile/moe_exchange_law.hpp against public tables: of TensorRT-LLM the
// largest expert-parallel size from the two before, and those of compare_dispatchers(); a table
// that is not in `folder` is named in a verdict.
void compare_moe_exchanges(const std::string& folder, Validation& validation);

}  // namespace moesim::study
