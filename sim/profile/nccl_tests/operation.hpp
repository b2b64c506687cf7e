#pragma once

#include <string>

#include "sim/profile/nccl_tests/run.hpp"

namespace moesim::profile {

// Sets the operation of a run, as of its program. Throws UsageError naming file and line for a
// program whose exchange is not known here.
void name_operation(NcclTestsRun& run);

// What busbw is of algbw (nccl-tests, doc/PERFORMANCE.md), of an operation as NcclTestsRun has it.
double bus_factor(const std::string& operation, double ranks);

// Throws UsageError naming file and line where the run is of another operation (as
// NcclTestsRun::operation): by its program, or by busbw over algbw.
void check_operation(const NcclTestsRun& run, const std::string& operation);

}  // namespace moesim::profile
