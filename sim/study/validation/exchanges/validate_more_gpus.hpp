#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/profile/node_links.hpp"
#include "sim/study/validation/exchanges/exchange_tables.hpp"
#include "sim/study/validation/tables/validation.hpp"

namespace moesim::study {

// Exchanges inside a node among more GPUs than a profile has measured, as `predict` answers them:
// each run of several GPU counts is cut to its smaller ones, written as a curve of a profile, and
// asked for each larger one (profile::CollectiveCurve, its law and its band). `links`: how the GPUs
// of each system are joined; systems without are left out.
void compare_more_gpus(const std::vector<CollectiveRow>& rows,
                       const std::map<std::string, profile::NodeLinks>& links,
                       Validation& validation);

}  // namespace moesim::study
