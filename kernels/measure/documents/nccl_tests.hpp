#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace moesim::kernels::measure {

// What nccl-tests (alltoall_perf, all_reduce_perf, ...) printed of one run inside a node.
struct NcclTestsRun {
  std::string file;
  std::string device;  // "NVIDIA H200"
  std::string dtype;   // "half", "float", ...
  std::string nccl;    // "2.27.3"; "": the output does not say
  std::string op;      // as NcclTestsImport::op; "": it neither
  int gpus = 0;
  std::vector<std::pair<double, double>> times;  // size column in bytes, out-of-place time in us
  std::vector<std::string> doubts;               // as profile::NcclTestsRun::doubts
};

// Throws UsageError naming file and line: as profile::read_nccl_tests_log(), several runs or hosts,
// several data types, another operation than `op` (as NcclTestsImport::op; "": any).
NcclTestsRun read_nccl_tests(const std::string& file, const std::string& op);

struct NcclTestsImport {
  std::vector<NcclTestsRun> runs;  // of one operation, one dtype and one device
  std::string op;                  // all-to-all, all-reduce, all-gather, reduce-scatter
  std::string nccl;                // "2.27.3": the output of nccl-tests need not say
  std::string base;                // shipped profile or file: everything else
  std::string name;                // of the new profile
  std::string tool_version;
  bool other_gpu = false;  // the runs may be of another GPU than the base
};

// The base profile with that operation's curve fitted to the runs (one branch per GPU count; GPU
// counts that were not run keep the base's branches if it is of the same device), gone on outside
// the measured sizes by the base's times (go_on_beyond_sizes()), checked against the schema. Throws
// UsageError for too few sizes, runs that differ in device or dtype, runs of another GPU than the
// base's without `other_gpu`, or reductions of another dtype than half or bfloat16.
nlohmann::ordered_json profile_with_nccl_tests(const NcclTestsImport& request);

}  // namespace moesim::kernels::measure
