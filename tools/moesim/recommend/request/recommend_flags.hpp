#pragma once

#include <string>
#include <vector>

#include "sim/base/enum_names.hpp"
#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// The flags of `train`, where those that are searched take lists, those of the search, and those of
// `simulate` that forward passes alone have.
std::vector<Flag> recommend_flags();

// Whether a flag of `train` takes a list of values to search.
bool is_searched(const std::string& flag);

// Whether it is an option of `simulate`, which --mode prefill takes.
bool is_scenario_option(const std::string& flag);
// Whether training steps do not have it.
bool is_of_prefill_alone(const std::string& flag);

// The different values of a list; of capacity factors ranges too. Precondition: it was typed.
std::vector<std::string> list_of(const CommandLine& line, const std::string& flag);

// Whether layouts that differ in virtual stages alone are different ones.
inline constexpr EnumNames<bool, 2> distinct_names{
    {{false, "layout",
      "parallel sizes, micro-batch, overlap, dispatcher, router or capacity; twins are counted"},
     {true, "chunks", "virtual stages too"}}};

}  // namespace moesim::tool
