#include "sim/study/explain/exposed_time.hpp"

#include <algorithm>
#include <utility>

namespace moesim::study {
namespace {

constexpr double us_per_ms = 1e3;
using Span = std::pair<double, double>;

double& slot(ExposedTime& time, const Bar& bar) {
  return time.place_ms[static_cast<std::size_t>(bar.placement.place)];
}

// The length of begin to end that no span covers. Spans are apart and ascend.
double uncovered(const std::vector<Span>& spans, double begin, double end) {
  double left = end - begin;
  auto span = std::lower_bound(spans.begin(), spans.end(), begin,
                               [](const Span& one, double time) { return one.second <= time; });
  for (; span != spans.end() && span->first < end; ++span) {
    left -= std::min(end, span->second) - std::max(begin, span->first);
  }
  return std::max(0.0, left);
}

}  // namespace

ExposedTime exposed_time(std::vector<Bar> bars, double begin_us, double end_us) {
  ExposedTime result;
  result.total_ms = (end_us - begin_us) / us_per_ms;
  for (Bar& bar : bars) {
    bar.start_us = std::max(bar.start_us, begin_us);
    bar.end_us = std::min(bar.end_us, end_us);
  }
  std::stable_sort(bars.begin(), bars.end(),
                   [](const Bar& one, const Bar& other) { return one.start_us < other.start_us; });
  std::vector<Span> computing;
  double busy = 0;
  double reached = begin_us;
  for (const Bar& bar : bars) {
    const double start = std::max(reached, bar.start_us);
    if (bar.placement.is_exchange || bar.end_us <= start) continue;
    slot(result, bar) += (bar.end_us - start) / us_per_ms;
    busy += bar.end_us - start;
    if (!computing.empty() && computing.back().second == start) {
      computing.back().second = bar.end_us;
    } else {
      computing.emplace_back(start, bar.end_us);
    }
    reached = bar.end_us;
  }
  reached = begin_us;
  for (const Bar& bar : bars) {
    const double start = std::max(reached, bar.start_us);
    if (!bar.placement.is_exchange || bar.end_us <= start) continue;
    const double exposed = uncovered(computing, start, bar.end_us);
    slot(result, bar) += exposed / us_per_ms;
    busy += exposed;
    reached = bar.end_us;
  }
  result.idle_ms = std::max(0.0, end_us - begin_us - busy) / us_per_ms;
  return result;
}

ExposedTime exposed_time(const engine::Timeline& timeline) {
  int slowest = 0;
  Picoseconds end;
  for (const engine::TimelineEvent& event : timeline) {
    if (event.start + event.duration <= end) continue;
    end = event.start + event.duration;
    slowest = event.rank;
  }
  const std::vector<std::string>& names = step::part_names();
  std::vector<Bar> bars;
  for (const engine::TimelineEvent& event : timeline) {
    if (event.rank != slowest || event.is_range) continue;
    const auto found = std::find(names.begin(), names.end(), event.category);
    Placement placement;
    if (found != names.end()) placement.place = static_cast<Place>(found - names.begin());
    placement.is_exchange = event.stream != "compute";
    bars.push_back({event.start.us(), (event.start + event.duration).us(), placement});
  }
  return exposed_time(std::move(bars), 0, end.us());
}

}  // namespace moesim::study
