#pragma once

#include <functional>
#include <string>

#include "sim/model/megatron/megatron_arguments.hpp"
#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// Calls `take` with each option and each argument of Megatron-LM that it is taken from, without
// dashes; arguments of an option that does not declare them come last.
void each_option_argument(
    const std::function<void(const std::string& option, const char* argument)>& take);

// Spares the arguments whose options are on the line, which go before them: their values need not
// be known.
void spare_typed(model::MegatronArguments& given, const CommandLine& line);

}  // namespace moesim::tool
