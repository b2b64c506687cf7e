#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// `simulate` or `sweep` as a command that takes the options of a training job too, where the
// arguments name one that a scenario does not have (--tensor-parallel, --precision, ...): typed, in
// the file of --config, or of a row of such a result. It predicts what `train` predicts, with the
// defaults of a scenario, and writes the columns of a scenario, layout_row(). Nothing for other
// commands and arguments.
std::optional<Command> command_with_layout(const Command& command,
                                           const std::vector<std::string>& arguments);

// What their help says of it.
inline constexpr const char* layout_help =
    "Options of layout, precision and software that 'moesim train --help' lists are\n"
    "taken too (--tensor-parallel, --pipeline-parallel, --precision, --dispatcher\n"
    "allgather, ...): then the step is priced as train prices it, in the columns of\n"
    "this command. Defaults stay those of this command: --capacity-convention paper\n"
    "(train: library), its --profile, --micro-batch and --routing; a global batch is\n"
    "one micro-batch of each data-parallel rank, with a pipeline as many as it has\n"
    "stages.\n";

}  // namespace moesim::tool
