#include "sim/study/validation/exchanges/exchange_coverage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>

#include "sim/base/statistics.hpp"

namespace moesim::study {
namespace {

constexpr std::size_t fewest = 10;         // errors that make a band
constexpr std::size_t judged_points = 20;  // of a table
constexpr double least_inside = 0.85;
constexpr double most_inside = 0.95;
constexpr std::array<double, 3> region_ends = {64 * 1024.0 + 1, 1024.0 * 1024 + 1,
                                               16 * 1024.0 * 1024 + 1};
constexpr std::size_t below_1_mib = 2;  // regions

std::size_t region_of(double bytes) {
  return static_cast<std::size_t>(std::upper_bound(region_ends.begin(), region_ends.end(), bytes) -
                                  region_ends.begin());
}

// In logs, what a switch at another size explains left out.
struct Band {
  double low = 0;
  double high = 0;
};

bool shares_run(const HeldOutRow& row, const std::string& run) {
  return row.target == run || row.source == run;
}

// From the errors in the regions `first` to `last`.
std::optional<Band> band(const std::vector<HeldOutRow>& every, const std::string& left_out,
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
  Band found{rule.widen * quantile(low, 0.05), rule.widen * quantile(high, 0.95)};
  if (rule.mirrored) {
    found.high = std::max(found.high, -found.low);
    found.low = -found.high;
  }
  return found;
}

}  // namespace

void Coverage::add(const Coverage& other) {
  points += other.points;
  inside += other.inside;
  widths.insert(widths.end(), other.widths.begin(), other.widths.end());
}

Coverage coverage(const std::vector<HeldOutRow>& table, const std::vector<HeldOutRow>& every,
                  const BandRule& rule) {
  std::map<std::pair<std::string, std::size_t>, std::optional<Band>> bands;
  Coverage found;
  for (const HeldOutRow& row : table) {
    const auto key = std::pair(row.target, region_of(row.bytes));
    const auto [place, fresh] = bands.try_emplace(key);
    if (fresh) place->second = band(every, key.first, key.second, key.second, rule);
    if (!place->second) continue;
    const double over = std::log(row.over_chord);
    const double low = place->second->low - std::max(over, 0.0);
    const double high = place->second->high - std::min(over, 0.0);
    const double error = std::log(row.measured_us / row.predicted_us);
    ++found.points;
    if (error >= low && error <= high) ++found.inside;
    found.widths.push_back(std::exp(high) - std::exp(low));
  }
  return found;
}

std::string coverage_text(const Coverage& coverage) {
  return fmt::format("90 % band: {} of {} inside, {:.0f} % wide", coverage.inside, coverage.points,
                     median(coverage.widths) * 100);
}

void report_coverage(const Coverage& coverage, const std::string& what, bool judged,
                     Validation& validation) {
  if (coverage.points == 0) return;
  const double share = static_cast<double>(coverage.inside) / static_cast<double>(coverage.points);
  std::optional<bool> met;
  if (judged && coverage.points >= judged_points)
    met = share >= least_inside && share <= most_inside;
  validation.verdicts.push_back({"exchanges",
                                 fmt::format("{}: {}, {:.0f} % of them; wanted 85 to 95 %", what,
                                             coverage_text(coverage), share * 100),
                                 met});
}

}  // namespace moesim::study
