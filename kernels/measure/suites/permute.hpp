#pragma once

#include "kernels/measure/suites/suite.hpp"

namespace moesim::kernels::measure {

// permute and combine, forward.
Suite permute_suite();

}  // namespace moesim::kernels::measure
