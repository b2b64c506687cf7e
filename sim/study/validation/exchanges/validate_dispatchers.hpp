#pragma once

#include <string>

#include "sim/study/validation/tables/validation.hpp"

namespace moesim::study {

// Holds the law of dispatchers (sim/profile/moe_exchange_law.hpp) and the shipped figures
// (profiles/dispatchers) against deepep_normal.csv, deepep_lowlatency.csv,
// trtllm_moe_alltoall_gb200.csv and internode_alltoall.csv of `folder`, each with whole systems or
// node counts left out: what is left out has had no part in the figures that predict it. Tables
// that are not there are passed over.
void compare_dispatchers(const std::string& folder, Validation& validation);

}  // namespace moesim::study
