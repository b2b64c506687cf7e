#pragma once

#include <map>
#include <string>

#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

Flag megatron_input();  // --megatron FILE

// A command line with --megatron FILE: the arguments of Megatron-LM in the file as flags of
// `train` and `layout`, below those that were typed; the model too, unless --model was. Notes
// arguments without effect on a step's time, and those that are not understood, by name. Without
// the flag: the line itself. Throws UsageError naming file, line and argument for what cannot be.
CommandLine with_megatron(const Command& command, CommandLine line);

// What with_megatron() takes of routing, if the line of a --megatron FILE had a capacity factor:
// how it pads and drops, and by which scores experts are chosen, without what is typed. Without
// notes.
std::map<std::string, std::string> megatron_capacity(const CommandLine& line);

}  // namespace moesim::tool
