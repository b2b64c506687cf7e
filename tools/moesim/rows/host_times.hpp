#pragma once

#include <string>

#include "sim/training/job/training_job.hpp"
#include "tools/moesim/rows/named_cells.hpp"

namespace moesim::tool {

// Which of the host's times were given: "launch_us step_overhead_ms". A row has the times also
// where they are assumed, and --from has to know.
inline constexpr const char* given_host_column = "host_times_given";

// Adds that column where a time was given; other rows have none.
void add_given_host(const training::HostCosts& host, NamedCells& row);

// "15 us of the host per kernel launched, 2 ms per step, ", without a time that was given.
std::string assumed_host_text(const training::HostCosts& host);

}  // namespace moesim::tool
