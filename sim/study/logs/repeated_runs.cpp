#include "sim/study/logs/repeated_runs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/base/statistics.hpp"

namespace moesim::study {
namespace {

// Where runs are fewer, the fastest and the slowest are the 5 and 95 % quantiles as well as any.
constexpr std::size_t fewest_for_quantiles = 20;

// Public runs of one machine and NCCL version differ by 2 to 8 % in the median
// (profiles/EXCHANGES.md, "Siblings, tails and scatter"); those of small messages, which latency
// decides, by more.
constexpr double usual_ratio = 1.2;
constexpr double usual_ratio_of_small = 1.5;
constexpr double small_bytes = 256 << 10;

std::vector<double> times_of(const std::vector<TimedRun>& runs) {
  std::vector<double> times;
  for (const TimedRun& run : runs) times.push_back(run.time_us);
  return times;
}

std::pair<double, double> quantiles_of_size(const std::vector<double>& times) {
  if (times.size() < fewest_for_quantiles) {
    const auto [least, most] = std::minmax_element(times.begin(), times.end());
    return {*least, *most};
  }
  return {quantile(times, 0.05), quantile(times, 0.95)};
}

// The size nearest to `bytes`, in octaves, that was run more than once.
const std::vector<TimedRun>* nearest_repeated(const RunsBySize& runs, double bytes) {
  const std::vector<TimedRun>* nearest = nullptr;
  double least = 0;
  for (const auto& [size, repeats] : runs) {
    if (repeats.size() < 2) continue;
    const double away = std::abs(std::log2(size / bytes));
    if (nearest != nullptr && away >= least) continue;
    nearest = &repeats;
    least = away;
  }
  return nearest;
}

std::string told(const TimedRun& run) {
  const std::string line = run.line == 0 ? "" : fmt::format(", line {}", run.line);
  return fmt::format("{:.2f} us ({}{})", run.time_us, run.file, line);
}

}  // namespace

RunQuantiles quantiles_of(const RunsBySize& runs) {
  RunQuantiles quantiles;
  for (const auto& [bytes, repeats] : runs) {
    const std::vector<TimedRun>* const nearest = nearest_repeated(runs, bytes);
    if (nearest == nullptr) return {};
    const std::vector<double> times = times_of(*nearest);
    const auto [low, high] = quantiles_of_size(times);
    const double middle = median(times_of(repeats));
    const double scale = middle / median(times);
    quantiles.p05_us.push_back(std::min(low * scale, middle));
    quantiles.p95_us.push_back(std::max(high * scale, middle));
  }
  return quantiles;
}

std::optional<std::string> contradiction_of(const std::string& exchange, const RunsBySize& runs) {
  double worst = 1, worst_bytes = 0;
  std::pair<TimedRun, TimedRun> ends;
  int apart = 0, repeated = 0;
  for (const auto& [bytes, repeats] : runs) {
    const auto [least, most] =
        std::minmax_element(repeats.begin(), repeats.end(),
                            [](const auto& a, const auto& b) { return a.time_us < b.time_us; });
    if (repeats.size() > 1) ++repeated;
    const double ratio = most->time_us / least->time_us;
    if (ratio < (bytes < small_bytes ? usual_ratio_of_small : usual_ratio)) continue;
    ++apart;
    if (ratio <= worst) continue;
    worst = ratio;
    worst_bytes = bytes;
    ends = {*least, *most};
  }
  if (apart == 0) return std::nullopt;
  return fmt::format(
      "warning: {}: runs contradict each other at {} of {} sizes, most at {:.0f} bytes: {} and {}, "
      "{:.2f} times as long",
      exchange, apart, repeated, worst_bytes, told(ends.first), told(ends.second), worst);
}

}  // namespace moesim::study
