#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/study/search/training_search.hpp"
#include "tools/moesim/base/command.hpp"
#include "tools/moesim/recommend/request/search_source.hpp"

namespace moesim::tool {

// The layout that a search started from.
struct Yours {
  std::string name;                      // "run.sh"
  std::string command;                   // the `moesim train` of it
  std::optional<study::FoundStep> step;  // as the steps of the search
  std::string refusal;                   // why it cannot be
};

struct RecommendRequest {
  CommandLine line;
  std::shared_ptr<scenario::DocumentCache> documents;  // of its source
  study::TrainingSearch search;
  std::string software;  // of published steps: --software, or what one's own was compared with
  std::vector<CommandLine> routings;  // the flags of each of search.space.routings
  std::optional<Yours> yours;         // of --from and --megatron

  // The `moesim train` that prints the figures of a step found by the search: the typed flags, and
  // those that say which of the candidates it is.
  std::string command_of(const study::FoundStep& found) const;
  // Whether it is time for the answer: no more is to be simulated for it.
  bool is_stopped() const { return search.stop && search.stop(); }
  // A job of forced balance with the routing that --routing-draws draws.
  training::TrainingJob drawn(const training::TrainingJob& job) const;
};

// Throws UsageError naming the flag.
RecommendRequest requested_search(const SearchSource& source);

}  // namespace moesim::tool
