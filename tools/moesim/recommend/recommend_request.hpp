#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/study/search/training_search.hpp"
#include "tools/moesim/command.hpp"
#include "tools/moesim/recommend/recommend_source.hpp"

namespace moesim::tool {

// The flags of `train`, where those that are searched take lists, and those of the search.
std::vector<Flag> recommend_flags();

// The different values of a list; of capacity factors ranges too. Precondition: it was typed.
std::vector<std::string> list_of(const CommandLine& line, const std::string& flag);

struct SearchLimits {
  std::size_t best = 5;
  double max_loss = 0;
  double min_speed = 0;
  double memory_share = 0.9;
};
// Throws UsageError naming the flag.
SearchLimits requested_limits(const CommandLine& line);

// The layout that a search started from.
struct Yours {
  std::string name;                      // "run.sh"
  std::string command;                   // the `moesim train` of it
  std::optional<study::FoundStep> step;  // as the steps of the search
  std::string refusal;                   // why it cannot be
};

struct RecommendRequest {
  CommandLine line;
  study::TrainingSearch search;
  std::string software;  // of published steps: --software, or what one's own was compared with
  std::vector<CommandLine> routings;  // the flags of each of search.space.routings
  std::optional<Yours> yours;         // of --from and --megatron

  // The `moesim train` that prints the figures of a step found by the search: the typed flags, and
  // those that say which of the candidates it is.
  std::string command_of(const study::FoundStep& found) const;
  // A job of forced balance with the routing that --routing-draws draws.
  training::TrainingJob drawn(const training::TrainingJob& job) const;
};

// Throws UsageError naming the flag.
RecommendRequest requested_search(const SearchSource& source);

}  // namespace moesim::tool
