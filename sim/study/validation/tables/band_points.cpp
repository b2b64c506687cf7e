#include "sim/study/validation/tables/band_points.hpp"

#include <fmt/format.h>

#include <boost/math/distributions/binomial.hpp>
#include <cmath>
#include <map>
#include <utility>

#include "sim/base/statistics.hpp"

namespace moesim::study {
namespace {

using uncertainty::Interval;
using uncertainty::Judged;

constexpr std::size_t judged_points = 20;
constexpr std::size_t judged_groups = 9;
constexpr double band_level = 0.9;
constexpr double least_inside = 0.85;
constexpr double most_inside = 0.95;
constexpr double rounding = 1e-9;

struct Share {
  std::size_t points = 0;
  std::size_t inside = 0;
  double value() const { return static_cast<double>(inside) / static_cast<double>(points); }
};

Share share_of(const std::vector<BandPoint>& points) {
  Share share;
  for (const BandPoint& point : points) {
    ++share.points;
    if (point.band.contains(point.error)) ++share.inside;
  }
  return share;
}

std::map<std::string, Share> shares_by_group(const std::vector<BandPoint>& points) {
  std::map<std::string, std::vector<BandPoint>> groups;
  for (const BandPoint& point : points) groups[point.group].push_back(point);
  std::map<std::string, Share> shares;
  for (const auto& [group, members] : groups) shares[group] = share_of(members);
  return shares;
}

// The share of the squared errors that the means of groups explain.
double common_share(const std::vector<BandPoint>& points) {
  std::map<std::string, std::pair<double, double>> sums;  // of errors, of points
  double squares = 0;
  for (const BandPoint& point : points) {
    sums[point.group].first += point.error;
    sums[point.group].second += 1;
    squares += point.error * point.error;
  }
  double common = 0;
  for (const auto& [group, sum] : sums) common += sum.first * sum.first / sum.second;
  return squares > 0 ? common / squares : 0;
}

}  // namespace

Interval at_level(const Interval& band, double level) {
  const double scale = normal_quantile((1 + level) / 2) / normal_quantile((1 + band_level) / 2);
  return {scale * band.low, scale * band.high};
}

CalibrationPoint calibration_point(const std::string& question, const std::vector<Judged>& judged,
                                   double level, std::optional<std::size_t> groups) {
  std::vector<double> values;
  values.reserve(judged.size());
  for (const Judged& each : judged) values.push_back(each.value);
  const uncertainty::Coverage found = uncertainty::coverage_of(judged, level);
  const uncertainty::Coverage constant = uncertainty::constant_band(values, level);
  return {question,
          level,
          found.points,
          found.inside,
          found.width,
          found.interval_score,
          constant.interval_score,
          constant.width,
          groups};
}

void add_levels(const std::string& question, const std::vector<BandPoint>& points,
                Validation& validation) {
  if (points.empty()) return;
  const std::size_t groups = shares_by_group(points).size();
  for (const double level : nominal_levels) {
    std::vector<Judged> judged;
    judged.reserve(points.size());
    for (const BandPoint& point : points) {
      judged.push_back({point.error, at_level(point.band, level)});
    }
    validation.calibration.push_back(calibration_point(question, judged, level, groups));
  }
}

std::string coverage_text(const std::vector<BandPoint>& points) {
  std::vector<double> widths;
  for (const BandPoint& point : points) {
    widths.push_back(std::exp(point.band.high) - std::exp(point.band.low));
  }
  const Share share = share_of(points);
  return fmt::format("90 % band: {} of {} inside, {:.0f} % wide", share.inside, share.points,
                     median(widths) * 100);
}

double least_share_by_chance(std::size_t groups) {
  // The most groups outside that less than one time in twenty are exceeded.
  const boost::math::binomial outside(static_cast<double>(groups), 1 - band_level);
  std::size_t most = 0;
  while (most < groups && boost::math::cdf(outside, static_cast<double>(most)) < 0.95) ++most;
  return 1 - static_cast<double>(most) / static_cast<double>(groups);
}

ShareVerdict verdict_of_share(double inside, std::size_t groups) {
  if (groups >= judged_groups) {
    return {fmt::format("{} groups", groups),
            inside >= least_inside - rounding && inside <= most_inside + rounding};
  }
  const double least = least_share_by_chance(groups);
  const std::string text = fmt::format(
      "{} group{}, less than {}: right bands hold {:.0f} to 100 % of groups that err "
      "as one",
      groups, groups == 1 ? "" : "s", judged_groups, 100 * least);
  return {text, inside < least - rounding ? std::optional(false) : std::nullopt};
}

void report_bands(const std::string& study, const std::string& question,
                  const std::vector<BandPoint>& points, bool judged, Validation& validation) {
  if (points.empty()) return;
  add_levels(question, points, validation);
  const Share share = share_of(points);
  const auto by_group = shares_by_group(points);
  auto [text, met] = verdict_of_share(share.value(), by_group.size());
  if (!judged || share.points < judged_points) met = std::nullopt;
  validation.verdicts.push_back(
      {study,
       fmt::format("{}: {}, {:.0f} % of them; wanted 85 to 95 %; {}; {:.0f} % of the squared error "
                   "is common to a group",
                   question, coverage_text(points), share.value() * 100, text,
                   common_share(points) * 100),
       met});
  if (by_group.size() == 1) return;
  std::string each;
  for (const auto& [group, part] : by_group) {
    each += fmt::format("{}{} {} of {}", each.empty() ? "" : ", ", group, part.inside, part.points);
  }
  validation.verdicts.push_back(
      {study, fmt::format("{}, inside by group: {}", question, each), std::nullopt});
}

double chance_of_bar(std::size_t count) {
  const auto all = static_cast<double>(count);
  const boost::math::binomial inside(all, band_level);
  const double least = std::ceil(least_inside * all - rounding);
  const double most = std::floor(most_inside * all + rounding);
  if (most < least) return 0;
  return boost::math::cdf(inside, most) - (least > 0 ? boost::math::cdf(inside, least - 1) : 0);
}

void report_share_of_tables(const std::string& study, Validation& validation) {
  std::size_t tables = 0, met = 0, below = 0;
  double by_points = 0, by_groups = 0;
  for (const CalibrationPoint& table : validation.calibration) {
    if (table.nominal != band_level || table.points < judged_points) continue;
    ++tables;
    met += table.observed >= least_inside - rounding && table.observed <= most_inside + rounding;
    below += table.observed < least_inside - rounding;
    by_points += chance_of_bar(table.points);
    by_groups += chance_of_bar(table.groups.value_or(table.points));
  }
  if (tables == 0) return;
  validation.verdicts.push_back(
      {study,
       fmt::format(
           "{} of {} tables of 20 points or more have 85 to 95 % inside the 90 % band, {} "
           "less; of right bands {:.0f} would, if points erred each by itself, and {:.0f} if "
           "all points of a group erred as one",
           met, tables, below, by_points, by_groups),
       std::nullopt});
}

}  // namespace moesim::study
