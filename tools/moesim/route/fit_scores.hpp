#pragma once

#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// Fits a model of scores to the trace named by --fit-scores, writes it to --out and says what it
// found. Throws UsageError when --out is missing.
ExitCode fit_scores(const CommandLine& line);
Flag fit_scores_flag();

}  // namespace moesim::tool
