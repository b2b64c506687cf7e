#pragma once

#include <string>
#include <vector>

#include "sim/base/enum_names.hpp"
#include "sim/base/formats/document.hpp"

namespace moesim::cluster {

// What nccl-tests measures of an exchange among the ranks of a job.
enum class MeasuredOperation {
  all_to_all,
  all_reduce,
  all_gather,
  reduce_scatter,
  send_receive,  // sendrecv_perf: every rank sends its buffer to the next one
};

inline constexpr EnumNames<MeasuredOperation, 5> measured_operation_names{{
    {MeasuredOperation::all_to_all, "all-to-all"},
    {MeasuredOperation::all_reduce, "all-reduce"},
    {MeasuredOperation::all_gather, "all-gather"},
    {MeasuredOperation::reduce_scatter, "reduce-scatter"},
    {MeasuredOperation::send_receive, "send-receive"},
}};
constexpr const char* name_of(MeasuredOperation operation) {
  return name_in(measured_operation_names, operation);
}

// The measured time of one exchange against its size, on this cluster. Noise may let a time fall
// from one size to the next.
struct MeasuredExchange {
  MeasuredOperation operation = MeasuredOperation::all_to_all;
  int nodes = 1;  // the GPUs are spread evenly over them: gpus / nodes on each
  int gpus = 2;
  std::string library;          // "NCCL 2.27.3"; "": not stated
  std::string origin;           // "measured: ...", shown in provenance
  std::vector<double> bytes;    // ascending: nccl-tests' size column
  std::vector<double> time_us;  // nccl-tests' time column, median of the runs
  std::vector<double> p05_us;   // 5 % and 95 % quantiles of the runs; both empty: not known
  std::vector<double> p95_us;

  // A time at any size, and the quantiles of the runs there (both the time itself: not known).
  struct Time {
    double time_us = 0;
    double p05_us = 0;
    double p95_us = 0;
    double beyond = 1;  // size over the largest measured, or smallest measured over size; 1: inside
    double curved_us = 0;  // between two sizes the power law through both; else the time
    double octaves = 0;    // between two sizes, factors of two from the nearer
  };
  // Between two sizes the straight line through both, a + b bytes: of public curves with every 2nd
  // or 4th size kept it is off by 1.8 and 3 to 4 % in the median, the power law by 2 to 3 and 5 to
  // 9 %. Below the first size its time, which is latency; beyond the last its time and for each
  // further byte what a byte of the last piece took, at most as much as one of the whole last
  // transfer and at least half of that. Where the exchange is also known otherwise, that says more
  // of sizes outside (network::estimate_of()).
  Time at(double size_bytes) const;
};

// The key "exchanges" of a cluster document, empty if absent. Throws UsageError naming file and
// key: sizes that do not ascend, times that are not positive, lists of different lengths, quantiles
// that do not enclose the time, GPUs that do not divide over the nodes or exceed gpus_per_node on
// each, more nodes than the cluster has (`nodes`, 0: any number), the same exchange of one library
// twice.
std::vector<MeasuredExchange> read_measured_exchanges(const Node& cluster, int gpus_per_node,
                                                      int nodes);

}  // namespace moesim::cluster
