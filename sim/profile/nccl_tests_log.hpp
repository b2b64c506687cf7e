#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace moesim::profile {

// One line of nccl-tests' table, its half out of place.
struct NcclTestsRow {
  std::size_t line = 0;  // of the file; 0 of JSON
  double bytes = 0;      // the column size
  std::string dtype;     // "float", "bfloat16"
  std::string redop;     // "sum", "none"; "" in versions without the column
  double time_us = 0;
  double bus_over_algorithm = 0;  // busbw / algbw; 0: not known
};

// What a program of nccl-tests (alltoall_perf, all_reduce_perf, ...) printed of one run.
struct NcclTestsRun {
  std::string file;
  std::size_t line = 0;   // where the run begins
  std::string program;    // "alltoall_perf"; "": the output does not say
  std::string operation;  // "all-to-all", ..., "send-receive"; "" as of the program
  std::string nccl;       // "2.27.3"; "": the output does not say
  std::string device;     // "NVIDIA H200"
  int gpus = 0;
  int hosts = 0;  // gpus / hosts on each
  std::vector<NcclTestsRow> rows;
  // The first rows in doubt: printed ones whose time and algbw disagree, and those after which the
  // time falls by more than noise as bytes grow. A run that did not come to its end, one whose
  // operations were started together (-m) or by graphs (-G).
  std::vector<std::string> doubts;
};

// All runs of a file, in order: what the programs print (nccl-tests 2.0 to 2.20, also with the
// prefixes that mpirun and srun put before a line, and among other output), or a file of their
// option -J. Throws UsageError naming file and line: no run or one without times, GPUs that are
// not of one kind or not the same number on each host, several groups at once, one rank many times
// (a build without MPI), wrong results, CPU times, cells that are no numbers, lines cut off, a
// program whose exchange is not known here.
std::vector<NcclTestsRun> read_nccl_tests_log(const std::string& file);

// What busbw is of algbw (nccl-tests, doc/PERFORMANCE.md), of an operation as NcclTestsRun has it.
double bus_factor(const std::string& operation, double ranks);

// Throws UsageError naming file and line where the run is of another operation (as
// NcclTestsRun::operation): by its program, or by busbw over algbw.
void check_operation(const NcclTestsRun& run, const std::string& operation);

}  // namespace moesim::profile
