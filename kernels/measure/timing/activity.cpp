#include "kernels/measure/timing/activity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "sim/base/error.hpp"

namespace moesim::kernels::measure {
namespace {

constexpr double us_per_ns = 1e-3;

Activity sum_up(std::vector<ActivityRecord> records) {
  std::sort(records.begin(), records.end(),
            [](const auto& one, const auto& other) { return one.start_ns < other.start_ns; });
  Activity activity;
  activity.launches = records.size();
  std::uint64_t busy = 0, sum = 0, reached = records.front().start_ns;
  for (const ActivityRecord& record : records) {
    sum += record.end_ns - record.start_ns;
    const std::uint64_t from = std::max(record.start_ns, reached);
    if (record.end_ns > from) busy += record.end_ns - from;
    reached = std::max(reached, record.end_ns);
  }
  activity.busy_us = us_per_ns * static_cast<double>(busy);
  activity.sum_us = us_per_ns * static_cast<double>(sum);
  activity.span_us = us_per_ns * static_cast<double>(reached - records.front().start_ns);
  return activity;
}

}  // namespace

std::map<std::uint64_t, Activity> join_activity(const Trace& trace) {
  if (trace.dropped > 0) {
    throw Error(
        fmt::format("the tracer dropped {} records: its figures would be too small and are "
                    "void",
                    trace.dropped));
  }
  std::multimap<std::uint32_t, const ActivityRecord*> by_call;
  for (const ActivityRecord& record : trace.records) {
    if (record.end_ns < record.start_ns) {
      throw Error("the tracer recorded a kernel that ends before it starts: its figures are void");
    }
    by_call.emplace(record.correlation, &record);
  }
  // A call may be reported in a range more than once (runtime and driver API).
  std::set<std::pair<std::uint64_t, std::uint32_t>> calls;
  for (const RangeLink& link : trace.links) calls.emplace(link.range, link.correlation);
  std::map<std::uint64_t, std::vector<ActivityRecord>> by_range;
  for (const auto& [range, correlation] : calls) {
    const auto [first, last] = by_call.equal_range(correlation);
    for (auto each = first; each != last; ++each) by_range[range].push_back(*each->second);
  }
  std::map<std::uint64_t, Activity> activities;
  for (auto& [range, records] : by_range) activities[range] = sum_up(std::move(records));
  return activities;
}

}  // namespace moesim::kernels::measure
