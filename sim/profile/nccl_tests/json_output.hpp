#pragma once

#include <string>

#include "sim/profile/nccl_tests/run.hpp"

namespace moesim::profile {

// The run in a file of option -J (nccl-tests 2.17 and later), as read_nccl_tests_log() reads it,
// but without NcclTestsRun::operation and doubts about times that fall. Throws UsageError naming
// file and key.
NcclTestsRun read_json_output(const std::string& file);

}  // namespace moesim::profile
