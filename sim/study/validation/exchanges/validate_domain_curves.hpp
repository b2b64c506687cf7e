#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/profile/node_links.hpp"
#include "sim/study/validation/exchanges/exchange_tables.hpp"
#include "sim/study/validation/tables/validation.hpp"

namespace moesim::study {

// Exchanges inside a domain of a cluster that has measured some of them, or has NVLink of another
// rate than the profile's GPU, as network::DomainCurves answers them. Each run of a machine is
// written as a cluster document, whole or in part, beside the shipped profile of another GPU with
// the same links (H100 and H200, B200 and GB200), which has not seen it; for another rate beside
// those of GPUs with other links. What is asked: the sizes between the kept ones and outside of
// them, other numbers of GPUs, the machine's other runs that record the same NCCL version.
void compare_domain_curves(const std::vector<CollectiveRow>& rows,
                           const std::map<std::string, profile::NodeLinks>& links,
                           Validation& validation);

}  // namespace moesim::study
