#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace moesim::kernels::measure {

// One kernel, copy or fill on the device, as a tracer recorded it; nanoseconds of one clock.
struct ActivityRecord {
  std::uint64_t start_ns = 0;
  std::uint64_t end_ns = 0;
  std::uint32_t correlation = 0;  // of the API call that launched it
};

// The API call `correlation` was made inside the range `range`.
struct RangeLink {
  std::uint64_t range = 0;
  std::uint32_t correlation = 0;
};

// What a range did on the device. Microseconds.
struct Activity {
  std::size_t launches = 0;
  double busy_us = 0;  // the union of its records: time when at least one ran
  double sum_us = 0;   // of their lengths, overlaps counted twice
  double span_us = 0;  // from the first start to the last end
};

struct Trace {
  std::vector<ActivityRecord> records;
  std::vector<RangeLink> links;
  std::size_t dropped = 0;  // records that the tracer had no room for
};

// Ties records to ranges by correlation, in whatever order they came; records outside all ranges
// are left out, a call inside nested ranges counts for each. Throws Error if records were dropped
// (figures of the rest would be too small) or if one ends before it starts.
std::map<std::uint64_t, Activity> join_activity(const Trace& trace);

}  // namespace moesim::kernels::measure
