#pragma once

#include <cstdint>
#include <string>

namespace moesim {

// "1, 2, 4, 8": the divisors of a number, up to `at_most`.
std::string divisors(std::int64_t number, std::int64_t at_most);

// Throws UsageError unless the experts can be divided evenly over that many expert-parallel ranks;
// it lists the numbers of ranks that would do, which divide `gpus` too.
void check_experts_divide(std::int64_t experts, std::int64_t ranks, std::int64_t gpus);

}  // namespace moesim
