#pragma once

#include <cstdint>

#include "kernels/measure/suites/suite.hpp"

namespace moesim::kernels::measure {

// The rows of each of `experts` experts in the ragged FFN: `rows` in all, the shares falling as
// 1 / (1 + place), none without rows.
std::vector<std::int64_t> ragged_rows(int experts, std::int64_t rows);

Suite experts_suite();

}  // namespace moesim::kernels::measure
