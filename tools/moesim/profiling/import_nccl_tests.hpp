#pragma once

#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// Output of nccl-tests into a profile, whose curve of that exchange it becomes; notes say what is
// in doubt and what to try. Throws UsageError naming the flag or the file: runs of several
// operations or versions of NCCL, and as kernels::measure::read_nccl_tests() and
// profile_with_nccl_tests().
ExitCode import_exchanges(const CommandLine& line);

}  // namespace moesim::tool
