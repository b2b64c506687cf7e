#pragma once

#include <string>

#include "sim/engine/timeline.hpp"

namespace moesim::report {

// The timeline as Chrome trace JSON (Perfetto, chrome://tracing) with the names and numbers of
// PyTorch's Kineto traces, so that measured and simulated traces can be compared side by side: GPUs
// are processes, streams are threads, exchanges are NCCL's kernels (ncclDevKernel_SendRecv), ranges
// are annotations. Times are in microseconds with three digits: to the nearest nanosecond.
std::string chrome_trace(const engine::Timeline& timeline, const std::string& title);

// The bars of one GPU as a trace of that rank alone, as torch.profiler writes one for each process:
// with distributedInfo, and one ProfilerStep#0 of the host that spans all of them. Holistic Trace
// Analysis reads a folder of such files.
std::string rank_trace(const engine::Timeline& timeline, const std::string& title, int rank,
                       int world_size);

}  // namespace moesim::report
