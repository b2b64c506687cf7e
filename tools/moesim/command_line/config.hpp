#pragma once

#include <map>
#include <string>

#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// --config FILE and --from FILE:ROW, which stand for other flags: a command that has one of these
// takes them.
Flag config_flag();
Flag from_flag();

// The options that a file of --config holds, by their names. Throws as take_config().
std::map<std::string, std::string> options_in_config(const std::string& file);

// Adds the options that the files of --config and --from hold: what is typed goes before --config,
// and this before --from. Throws UsageError naming file, line and key: a key that is no flag of the
// command, given twice, or without a single value or a list of them; a row that is not there.
void take_config(const Command& command, CommandLine& line);

// Where --cluster is typed and --profile is not: takes the profile that the cluster's document
// names, and says so if it is not the default. Of several clusters where all name the same.
void take_profile_of_cluster(const Command& command, CommandLine& line);

}  // namespace moesim::tool
