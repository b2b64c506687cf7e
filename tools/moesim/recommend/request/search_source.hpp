#pragma once

#include <memory>
#include <optional>
#include <string>

#include "sim/scenario/document_cache.hpp"
#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// A step that somebody runs or simulated, as a search starts from it.
struct StartingPoint {
  std::string name;     // "run.sh", "steps.csv:3"
  CommandLine line;     // as flags of `train`, its layout too
  std::string command;  // the `moesim train` of it
};

// What a search is asked for: flags of `recommend`, and what --from or --megatron start from.
struct SearchSource {
  CommandLine line;
  std::optional<StartingPoint> start;
  // What the search reads, each document once. Never null; several searches may share it.
  std::shared_ptr<scenario::DocumentCache> documents;
};

// A command line with the options of --config below those typed.
CommandLine with_config(CommandLine typed);

// A command line with the options that --from or --megatron hold below its own. These are all that
// a search does not choose: model, machine, batch, precision, dispatcher, routing; their layout is
// what the search's are compared with. Capacities that are searched pad, choose and drop as those
// of the script would. Throws UsageError for both, and as take_config() and with_megatron().
SearchSource requested_source(const CommandLine& typed,
                              std::shared_ptr<scenario::DocumentCache> documents =
                                  std::make_shared<scenario::DocumentCache>());

}  // namespace moesim::tool
