#pragma once

#include <string>

#include "sim/study/validation/tables/validation.hpp"

namespace moesim::study {

// NCCL's all-to-all of 4 GiB and more inside one rack of GB300, from GB200's curves up to 512 MiB
// and the factor by which bytes pass faster beyond (tools/fit/exchange_tail.py), chosen without the
// run, then without the GPU count, that is predicted. Nothing where `folder` has no
// internode_alltoall.csv.
void compare_rack_exchanges(const std::string& folder, Validation& validation);

}  // namespace moesim::study
