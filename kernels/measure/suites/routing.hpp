#pragma once

#include "kernels/measure/suites/suite.hpp"

namespace moesim::kernels::measure {

// The router's kernels, from logits (op "route") and from x (op "gate").
Suite routing_suite();

}  // namespace moesim::kernels::measure
