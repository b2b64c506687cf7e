#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/study/sweep/outcome.hpp"
#include "sim/study/sweep/sweep.hpp"

namespace moesim::study {

// The point that each point of a sweep is compared with: that of the grid which has the options of
// `text` ("router=top1,capacity-factor=1") and all others as the point itself. Repeats are replaced
// by what they repeat. Throws UsageError for what is not option=value, an option of no scenario, a
// value that the grid does not have.
std::vector<std::optional<std::size_t>> baselines(const std::vector<SweepPoint>& points,
                                                  const std::string& text);

// The point that `index` is compared with: nothing where there is none (`baseline_of` may be
// empty), or where it is refused before it is evaluated.
std::optional<std::size_t> baseline_at(const std::vector<SweepPoint>& points,
                                       const std::vector<std::optional<std::size_t>>& baseline_of,
                                       std::size_t index);

// What finished rows, by point, are compared with.
struct ComparedRows {
  std::map<std::size_t, Row> alike;  // with the baselines asked for
  bool has_none = true;              // no row is compared with any
  bool differs = false;              // some row is compared with another, or none, than asked for
};

// The rows whose columns over_baseline are of these baselines: the ratio of the row's speed to that
// of its baseline's row. A row whose baseline is not among the rows is left out, as it cannot be
// checked.
ComparedRows compared_rows(const std::vector<SweepPoint>& points,
                           const std::vector<std::optional<std::size_t>>& baseline_of,
                           const std::map<std::size_t, Row>& rows);

// The row as of a sweep without a baseline, and as of one whose baseline it has this ratio to.
Row without_baseline(Row row);
Row with_baseline(Row row, const SpeedRatio& ratio);

// How many times as fast `outcome` is as `baseline`: what both share cancels (ratio_band()). Steps
// that differ in router and capacity alone, padded to it, have the scatter of such published pairs,
// others that of pairs that differ in more.
//
// Of steps of ZeRO 2 or 3 it reaches as far as the two differ in what computing may hide of their
// exchanges (hidden_gain(), uncertainty::widen_by_hidden()): one program runs both.
//
// On two clusters, or with two profiles:
// - the software cancels where it is the same: one profile for both, or two without multipliers,
//   which say nothing of the software; the same program is then assumed to run on both;
// - on two clusters with one profile the kernels cancel too. Exchanges through NICs do not, nor
//   those inside domains with other links; both steps' shares count. Of steps that differ in
//   nothing else no scatter of configurations is left;
// - with two profiles errors of kernels do not cancel on two kinds of GPU, and each step has what
//   ErrorModel says that machines differ by in one software, and models on them, of its own:
//   2 (scatter^2 + machine^2 + model^2) of the variance;
// - of two profiles with multipliers nothing of the software cancels.
SpeedRatio speed_ratio(const scenario::Scenario& scenario, const Outcome& outcome,
                       const scenario::Scenario& baseline_scenario, const Outcome& baseline);

}  // namespace moesim::study
