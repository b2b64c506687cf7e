#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "sim/study/validation/tables/validation.hpp"
#include "sim/uncertainty/statistics/coverage.hpp"

namespace moesim::study {

// A point that was predicted without its group, in logs around the prediction.
struct BandPoint {
  std::string group;           // what was left out: a run, a machine, a number of nodes
  double error = 0;            // log(measured / predicted)
  uncertainty::Interval band;  // the 90 % band: p05 and p95 over the prediction
};

inline constexpr std::array nominal_levels = {0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1};

// A band at another level: each side that of a normal distribution with this end, as replicas of
// `simulate` draw from p05 and p95 (sim/step/prices/curve_errors.hpp).
uncertainty::Interval at_level(const uncertainty::Interval& band, double level);

// How bands of one level did. `groups`: that were left out, where they were counted. `judged` must
// not be empty.
CalibrationPoint calibration_point(const std::string& question,
                                   const std::vector<uncertainty::Judged>& judged, double level,
                                   std::optional<std::size_t> groups = std::nullopt);

// Adds the levels 10 to 90 % of `points` to the table of bands; nothing where there are none.
void add_levels(const std::string& question, const std::vector<BandPoint>& points,
                Validation& validation);

// "90 % band: 61 of 68 inside, 23 % wide": the median of (p95 - p05) / prediction. At least one
// point.
std::string coverage_text(const std::vector<BandPoint>& points);

// The least share of groups that bands of 90 % hold with a chance of at least 95 %, where the
// points of a group err as one: of 1 group 0, of 2 one half, of 9 seven ninths.
double least_share_by_chance(std::size_t groups);

// Whether a share inside of 90 % bands meets the bar of 85 to 95 %, and in words what the number of
// groups says of it. From 9 groups the bar decides; with fewer a share is unmet only below
// least_share_by_chance(), and never met.
struct ShareVerdict {
  std::string groups;
  std::optional<bool> met;
};
ShareVerdict verdict_of_share(double inside, std::size_t groups);

// Adds add_levels(), a verdict, and where there are several groups one line with the share inside
// of each. The verdict says how much of the squared errors the means of groups explain, and is by
// the bar of 85 to 95 % inside where there are at least 20 points and 9 groups: with fewer groups
// of points that err together right bands often miss that. These are unmet only below
// least_share_by_chance(). Nothing is judged unless `judged`.
void report_bands(const std::string& study, const std::string& question,
                  const std::vector<BandPoint>& points, bool judged, Validation& validation);

// How often bands of 90 % that are right hold 85 to 95 % of so many points or groups, each inside
// or not by itself.
double chance_of_bar(std::size_t count);

// Adds how many tables of at least 20 points have 85 to 95 % of them inside their 90 % band, and as
// many as right bands would have on average, if the points of a table erred each by itself and if
// all of a group erred as one. Nothing is judged.
void report_share_of_tables(const std::string& study, Validation& validation);

}  // namespace moesim::study
