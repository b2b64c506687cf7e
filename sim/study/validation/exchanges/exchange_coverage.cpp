#include "sim/study/validation/exchanges/exchange_coverage.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>

#include "sim/base/statistics.hpp"
#include "sim/base/units.hpp"
#include "sim/uncertainty/statistics/student_t.hpp"

namespace moesim::study {
namespace {

constexpr std::size_t fewest = 10;  // errors that make a band
constexpr double level = 0.9;
constexpr std::array<double, 3> region_ends = {64 * 1024.0 + 1, bytes_per_mib + 1,
                                               16 * bytes_per_mib + 1};
constexpr std::size_t below_1_mib = 2;  // regions

std::size_t region_of(double bytes) {
  return static_cast<std::size_t>(std::upper_bound(region_ends.begin(), region_ends.end(), bytes) -
                                  region_ends.begin());
}

bool shares_run(const HeldOutRow& row, const std::string& run) {
  return row.target == run || row.source == run;
}

// How far the bands of a run reach, from the errors of others in the regions `first` to `last`.
std::optional<double> reach(const std::vector<HeldOutRow>& every, const std::string& left_out,
                            std::size_t first, std::size_t last) {
  std::map<std::string, std::vector<double>> runs;
  std::size_t count = 0;
  for (const HeldOutRow& row : every) {
    const std::size_t region = region_of(row.bytes);
    if (shares_run(row, left_out) || region < first || region > last) continue;
    const double error = std::log(row.measured_us / row.predicted_us);
    const double over = std::log(row.over_chord);
    const double low = std::min(error + std::max(over, 0.0), 0.0);
    const double high = std::max(error + std::min(over, 0.0), 0.0);
    runs[row.target].push_back(std::max(-low, high));
    ++count;
  }
  if (count < fewest) {
    if (last > first) return std::nullopt;
    const bool is_small = first < below_1_mib;
    return reach(every, left_out, is_small ? 0 : below_1_mib,
                 is_small ? below_1_mib - 1 : region_ends.size());
  }
  std::vector<std::pair<double, double>> weighted;
  weighted.reserve(count);
  for (const auto& [run, distances] : runs) {
    for (const double distance : distances) {
      weighted.emplace_back(distance, 1 / static_cast<double>(distances.size()));
    }
  }
  return uncertainty::few_kinds_reach(runs.size(), level) / normal_quantile((1 + level) / 2) *
         weighted_quantile(std::move(weighted), level);
}

}  // namespace

std::vector<SizeReach> reach_by_size(const std::vector<HeldOutRow>& every,
                                     const std::string& left_out) {
  std::vector<SizeReach> found;
  for (std::size_t region = 0; region <= region_ends.size(); ++region) {
    const auto distance = reach(every, left_out, region, region);
    if (!distance) continue;
    found.push_back({region < region_ends.size() ? region_ends.at(region) : INFINITY, *distance});
  }
  return found;
}

double weighted_quantile(std::vector<std::pair<double, double>> values, double share) {
  std::sort(values.begin(), values.end());
  double total = 0;
  for (const auto& [value, weight] : values) total += weight;
  double below = 0;  // of the weight, with half of the value's own
  for (std::size_t at = 0; at < values.size(); ++at) {
    const double next = below + (at == 0 ? 0 : values[at - 1].second / 2) + values[at].second / 2;
    if (next >= share * total) {
      if (at == 0) return values.front().first;
      const double part = (share * total - below) / (next - below);
      return values[at - 1].first + part * (values[at].first - values[at - 1].first);
    }
    below = next;
  }
  return values.back().first;
}

std::vector<BandPoint> banded(const std::vector<HeldOutRow>& table,
                              const std::vector<HeldOutRow>& every) {
  std::map<std::pair<std::string, std::size_t>, std::optional<double>> reaches;
  std::vector<BandPoint> points;
  for (const HeldOutRow& row : table) {
    const auto key = std::pair(row.target, region_of(row.bytes));
    const auto [place, fresh] = reaches.try_emplace(key);
    if (fresh) place->second = reach(every, key.first, key.second, key.second);
    if (!place->second) continue;
    const double over = std::log(row.over_chord);
    points.push_back(
        {row.target,
         std::log(row.measured_us / row.predicted_us),
         {-*place->second - std::max(over, 0.0), *place->second - std::min(over, 0.0)}});
  }
  return points;
}

}  // namespace moesim::study
