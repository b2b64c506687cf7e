#pragma once

#include <string>
#include <vector>

#include "sim/profile/nccl_tests/run.hpp"

namespace moesim::profile {

// All runs of a file, in order: what the programs print (nccl-tests 2.0 to 2.20, also with the
// prefixes that mpirun and srun put before a line, and among other output), or a file of their
// option -J. Throws UsageError naming file and line: no run or one without times, GPUs that are
// not of one kind or not the same number on each host, several groups at once, one rank many times
// (a build without MPI), wrong results, CPU times, cells that are no numbers, lines cut off, a
// program that nccl-tests does not have.
std::vector<NcclTestsRun> read_nccl_tests_log(const std::string& file);

}  // namespace moesim::profile
