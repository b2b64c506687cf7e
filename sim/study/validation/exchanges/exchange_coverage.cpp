#include "sim/study/validation/exchanges/exchange_coverage.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>

#include "sim/base/statistics.hpp"

namespace moesim::study {
namespace {

using uncertainty::Interval;

constexpr std::size_t fewest = 10;  // errors that make a band
constexpr std::array<double, 3> region_ends = {64 * 1024.0 + 1, 1024.0 * 1024 + 1,
                                               16 * 1024.0 * 1024 + 1};
constexpr std::size_t below_1_mib = 2;  // regions

std::size_t region_of(double bytes) {
  return static_cast<std::size_t>(std::upper_bound(region_ends.begin(), region_ends.end(), bytes) -
                                  region_ends.begin());
}

bool shares_run(const HeldOutRow& row, const std::string& run) {
  return row.target == run || row.source == run;
}

// In logs, what a switch at another size explains left out. From the errors in the regions `first`
// to `last`.
std::optional<Interval> band(const std::vector<HeldOutRow>& every, const std::string& left_out,
                             std::size_t first, std::size_t last, const BandRule& rule) {
  std::vector<double> low;
  std::vector<double> high;
  for (const HeldOutRow& row : every) {
    const std::size_t region = region_of(row.bytes);
    if (shares_run(row, left_out) || region < first || region > last) continue;
    const double error = std::log(row.measured_us / row.predicted_us);
    const double over = std::log(row.over_chord);
    low.push_back(std::min(error + std::max(over, 0.0), 0.0));
    high.push_back(std::max(error + std::min(over, 0.0), 0.0));
  }
  if (low.size() < fewest) {
    if (last > first) return std::nullopt;
    const bool is_small = first < below_1_mib;
    return band(every, left_out, is_small ? 0 : below_1_mib,
                is_small ? below_1_mib - 1 : region_ends.size(), rule);
  }
  Interval found{rule.widen * quantile(low, 0.05), rule.widen * quantile(high, 0.95)};
  if (rule.mirrored) {
    found.high = std::max(found.high, -found.low);
    found.low = -found.high;
  }
  return found;
}

}  // namespace

std::vector<BandPoint> banded(const std::vector<HeldOutRow>& table,
                              const std::vector<HeldOutRow>& every, const BandRule& rule) {
  std::map<std::pair<std::string, std::size_t>, std::optional<Interval>> bands;
  std::vector<BandPoint> points;
  for (const HeldOutRow& row : table) {
    const auto key = std::pair(row.target, region_of(row.bytes));
    const auto [place, fresh] = bands.try_emplace(key);
    if (fresh) place->second = band(every, key.first, key.second, key.second, rule);
    if (!place->second) continue;
    const double over = std::log(row.over_chord);
    points.push_back(
        {row.target,
         std::log(row.measured_us / row.predicted_us),
         {place->second->low - std::max(over, 0.0), place->second->high - std::min(over, 0.0)}});
  }
  return points;
}

}  // namespace moesim::study
