#pragma once

#include <string>
#include <vector>

#include "sim/study/search/training_search.hpp"
#include "tools/moesim/command.hpp"

namespace moesim::tool {

// The flags of `train`, where those that are searched take lists, and those of the search.
std::vector<Flag> recommend_flags();

struct RecommendRequest {
  CommandLine line;
  study::TrainingSearch search;
  std::vector<CommandLine> routings;  // the flags of each of search.space.routings

  // The `moesim train` that prints the figures of a step found by the search: the typed flags, and
  // those that say which of the candidates it is.
  std::string command_of(const study::FoundStep& found) const;
};

// Throws UsageError naming the flag.
RecommendRequest requested_search(const CommandLine& line);

}  // namespace moesim::tool
