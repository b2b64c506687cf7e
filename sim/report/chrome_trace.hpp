#pragma once

#include <string>

#include "sim/engine/timeline.hpp"

namespace moesim::report {

// A Chrome trace (chrome://tracing, Perfetto) with the names of PyTorch's Kineto: one process per
// rank, one thread per stream, complete events ("ph": "X") of category "kernel", `ts` and `dur` in
// microseconds with picosecond digits.
std::string chrome_trace(const engine::Timeline& timeline, const std::string& title);

}  // namespace moesim::report
