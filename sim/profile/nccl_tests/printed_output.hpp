#pragma once

#include <string>
#include <vector>

#include "sim/profile/nccl_tests/run.hpp"

namespace moesim::profile {

// All runs of a file of what the programs print, in order, as read_nccl_tests_log() reads them, but
// without NcclTestsRun::operation and doubts about times that fall. Empty where there is none.
// Throws UsageError naming file and line.
std::vector<NcclTestsRun> read_printed_output(const std::string& file);

// What stands before "#  Rank  0 ..." where that does not begin its line, as log collectors write
// times and hosts; empty: no such line.
std::string prefix_of_ranks(const std::string& file);

}  // namespace moesim::profile
