#pragma once

#include <string>
#include <vector>

#include "sim/scenario/options.hpp"

namespace moesim::study {

// The values of one option of a sweep: "top1,top2+ir"; for numbers also inclusive decimal ranges,
// "0.5:2:0.5,3" is 0.5, 1, 1.5, 2, 3. Throws UsageError naming the flag.
std::vector<std::string> expand(const scenario::Option& option, const std::string& text);
// The same of a flag, "--gpus"; ranges if it takes numbers.
std::vector<std::string> expand(const std::string& flag, const std::string& text, bool is_number);

// Every combination of the values of `lists` (option name -> list as typed), in grid order: options
// in the order of scenario_options(), the first varying slowest. Throws UsageError for an empty or
// malformed list, or for more than max_scenarios combinations.
std::vector<scenario::OptionValues> grid(const scenario::OptionValues& lists);
constexpr std::size_t max_scenarios = 1'000'000;

}  // namespace moesim::study
