#pragma once

#include <nlohmann/json_fwd.hpp>

#include "sim/routing/groups/logits_file.hpp"
#include "sim/scenario/scenario.hpp"

namespace moesim::tool {

// report::routing_detail() of given logits: one layer of one replica. `row_bytes`: of a token's
// vector; 0: not known, and no bytes of pairs are said.
nlohmann::ordered_json logits_detail(const scenario::Scenario& scenario,
                                     const routing::GroupOfFile& file,
                                     const routing::RoutedGroup& group, double row_bytes);

}  // namespace moesim::tool
