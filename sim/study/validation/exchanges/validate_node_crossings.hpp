#pragma once

#include <string>

#include "sim/study/validation/tables/validation.hpp"

namespace moesim::study {

// NCCL's exchanges between nodes by PortModel, against the public tables under `folder` that
// node_crossing_rows.hpp reads, added to `validation`:
//   - each machine with the law's two scales (efficiency of the NICs, start) fitted to the others;
//   - each number of nodes from curves of the machine's other numbers, as a cluster document has
//     them;
//   - rings, for which nothing is fitted.
// The notes count the points in the 90 % band. Nothing is added where the tables are absent.
void compare_node_crossings(const std::string& folder, Validation& validation);

}  // namespace moesim::study
