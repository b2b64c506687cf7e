#pragma once

#include <string>
#include <vector>

#include "sim/study/search/training_search.hpp"
#include "tools/moesim/command.hpp"

namespace moesim::tool {

// The flags of `train`, where those that are searched take lists, and those of the search.
std::vector<Flag> recommend_flags();

// Throws UsageError naming the flag.
study::TrainingSearch requested_search(const CommandLine& line);

// The `moesim train` that prints the figures of a job found by such a search: the typed flags, and
// those that say which of the candidates it is.
std::string train_command_of(const CommandLine& line, const training::TrainingJob& job);

}  // namespace moesim::tool
