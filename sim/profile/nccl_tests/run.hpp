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
  std::size_t line = 0;   // where the run begins; 0 of JSON
  std::string program;    // "alltoall_perf"; "": the output does not say
  std::string operation;  // "all-to-all", ..., "send-receive"; "" as of the program
  bool other = false;     // of a program whose operation no step has, such as broadcast_perf
  std::string nccl;       // "2.27.3"; "": the output does not say
  std::string device;     // "NVIDIA H200"
  int gpus = 0;
  int hosts = 0;  // gpus / hosts on each
  std::vector<NcclTestsRow> rows;
  // The first rows in doubt: those whose time and algbw disagree, and those after which the
  // time falls by more than noise as bytes grow. A run that did not come to its end, one whose
  // operations were started together (-m) or by graphs (-G).
  std::vector<std::string> doubts;
};

// Adds a row to a run; one without a size or time says nothing and is left out. Throws UsageError
// naming file and line for more bytes than any exchange has.
void add_row(NcclTestsRun& run, NcclTestsRow row);

// "2.27.3" of NCCL_VERSION_CODE.
std::string nccl_version(int code);

// "FILE: line N", or of JSON "FILE" alone, for messages: where the run begins, or one of its rows.
std::string place_of(const NcclTestsRun& run);
std::string place_of(const NcclTestsRun& run, const NcclTestsRow& row);

// Throws UsageError: "FILE: line LINE: WHY", without the line where it is 0.
[[noreturn]] void refuse(const NcclTestsRun& run, std::size_t line, const std::string& why);

}  // namespace moesim::profile
