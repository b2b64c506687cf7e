#pragma once

#include <string>

#include "sim/profile/nccl_tests/run.hpp"

namespace moesim::profile {

// Sets the operation of a run, as of its program, or that it is another of nccl-tests' programs.
// Throws UsageError naming file and line for a program that is none of them.
void name_operation(NcclTestsRun& run);

// The operation whose program a file's name has in it, with or without '_' and '-'; "": none.
std::string operation_in_name(const std::string& file_name);

// Of a run of another program: "a.log: line 6: broadcast_perf is left out: ...".
std::string left_out(const NcclTestsRun& run);

// What busbw is of algbw (nccl-tests, doc/PERFORMANCE.md), of an operation as NcclTestsRun has it.
double bus_factor(const std::string& operation, double ranks);

// Throws UsageError naming file and line where the run is of another operation (as
// NcclTestsRun::operation): by its program, or by busbw over algbw.
void check_operation(const NcclTestsRun& run, const std::string& operation);

}  // namespace moesim::profile
