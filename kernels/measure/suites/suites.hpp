#pragma once

#include <string>
#include <vector>

#include "kernels/measure/suites/suite.hpp"

namespace moesim::kernels::measure {

// In order of importance: if time runs out, what a simulation needs most is there.
const std::vector<Suite>& all_suites();
// Throws UsageError that lists the suites, with the nearest one as a suggestion.
const Suite& find_suite(const std::string& name);

// What was not measured, and why: an entry of a profile's missing[] each.
struct Missing {
  std::string suite;
  std::string reason;
  std::string hint;
};
// What no suite measures.
const std::vector<Missing>& always_missing();

}  // namespace moesim::kernels::measure
