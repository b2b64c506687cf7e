#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sim/base/cell.hpp"
#include "sim/training/drawn/drawn_loads.hpp"
#include "sim/training/job/training_job.hpp"

namespace moesim::tool {

// The options of drawn routing in the columns of a row of `train`, in their order, with the slots
// of an expert (`capacity`) among them. An option is absent where this router has no such choice.
// `figures`: of the step.
std::vector<std::pair<std::string, Cell>> routing_cells(const training::DrawnRouting& drawn,
                                                        const training::RoutingFigures& figures);

// Those that stand behind the figures: options that few jobs have.
std::vector<std::pair<std::string, Cell>> rare_routing_cells(const training::DrawnRouting& drawn);

}  // namespace moesim::tool
