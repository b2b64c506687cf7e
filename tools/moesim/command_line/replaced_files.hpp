#pragma once

#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// Throws UsageError where a file that the command line has written would replace one that it has
// read (measurements, settings, documents, a file of recorded routing), or is written twice. What
// stays may be replaced: documents that import, calibrate and profile add to, the queries of
// predict, which become columns, rows of --from and --baseline, which are kept as FILE.old.
void check_replaced_files(const Command& command, const CommandLine& line);

}  // namespace moesim::tool
