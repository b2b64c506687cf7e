#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/profile/node_links.hpp"
#include "sim/study/validation/exchanges/exchange_tables.hpp"
#include "sim/study/validation/tables/validation.hpp"

namespace moesim::study {

// Exchanges inside one NVLink domain on machines that were not measured, each by leaving whole runs
// out: a machine's other NCCL versions and specimens from each of its runs, a machine among 4 and 8
// GPUs from its siblings (machines of the same line rate), and the largest sizes from the smaller
// ones. Errors by size, baselines, coverage of the 90 % bands. `links` by system of the rows.
void compare_exchange_runs(const std::vector<CollectiveRow>& rows,
                           const std::map<std::string, profile::NodeLinks>& links,
                           Validation& validation);

}  // namespace moesim::study
