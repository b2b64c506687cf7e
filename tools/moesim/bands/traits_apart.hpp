#pragma once

#include <vector>

#include "sim/uncertainty/steps/step_traits.hpp"

namespace moesim::tool {

// Those that one of two steps has and the other has not: in the ratio of the two what both have
// cancels.
std::vector<uncertainty::UnmeasuredTrait> traits_apart(
    const std::vector<uncertainty::UnmeasuredTrait>& one,
    const std::vector<uncertainty::UnmeasuredTrait>& other);

}  // namespace moesim::tool
