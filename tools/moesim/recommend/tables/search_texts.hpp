#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "sim/study/search/training_search.hpp"

namespace moesim::tool {

// "a" for the first of the front, "z", "aa" and so on; those of the best have numbers.
std::string front_name(std::size_t place);
// "86,016"
std::string count_text(std::size_t count);
// "812 ms", "83.9 s"
std::string step_text(double us);

// "2, 3 and 5"
std::string places_text(const std::vector<std::size_t>& numbers);
std::string chance_text(double chance);  // "a chance of 75 % or more"

// What a step gives up against the best: "2.1 % speed, 11 GiB, 0.30 % of tokens' weight".
// `speed`: over that of the best; the others are more than it takes.
std::string given_up_text(double speed, double gib, double loss);

// "bf16 or fp8-block": those that are searched.
std::string precisions_text(const study::TrainingSearch& search);
// "the least takes 107.2 GiB". Precondition: nothing fits.
std::string least_memory_text(const study::TrainingFound& found);

// A line of the heading: which routers and capacity factors were searched, with which routing; ""
// of a model without experts.
std::string routing_line(const study::TrainingSearch& search);

}  // namespace moesim::tool
