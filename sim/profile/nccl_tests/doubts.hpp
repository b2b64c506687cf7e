#pragma once

#include <cstddef>
#include <string>

#include "sim/profile/nccl_tests/run.hpp"

namespace moesim::profile {

constexpr std::size_t most_doubts = 3;  // of each kind

// Whether time and algbw (GB/s) of a row say the same, within the digits that are printed: two
// decimals, fewer of long times. A single cell that was garbled would bend a whole curve.
bool rate_agrees(double bytes, double time_us, double algorithm_gb_s);
// Names a row, at `where`, of which they do not.
void doubt_rate(NcclTestsRun& run, const std::string& where, const NcclTestsRow& row,
                double algorithm_gb_s);

// Names rows from which, with more bytes, the time falls by more than noise and protocols explain:
// those that lose most of it.
void doubt_falls(NcclTestsRun& run);

// Several operations in one group or graph (-m, -G: as printed) take less than as many alone; "":
// neither.
std::string grouping_of(const std::string& group, const std::string& graph);
// The doubt about a run with that grouping; `where`: its file, and line if it has one.
std::string grouping_doubt(const std::string& where, const std::string& grouping);

}  // namespace moesim::profile
