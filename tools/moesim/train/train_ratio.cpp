#include "tools/moesim/train/train_ratio.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "sim/base/text.hpp"
#include "sim/cluster/cluster.hpp"
#include "sim/uncertainty/steps/step_distance.hpp"
#include "tools/moesim/bands/capacity_pair.hpp"
#include "tools/moesim/bands/own_ratio.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/bands/unmeasured_pair.hpp"

namespace moesim::tool {
namespace {

// "-17 to +20 % with 90 %, ...": how far the ratio of two steps may be off.
std::string levels_text(const uncertainty::Band& ratio) {
  std::vector<std::string> levels;
  for (auto level = ratio.levels.rbegin(); level != ratio.levels.rend(); ++level) {
    levels.push_back(fmt::format("{:+.0f} to {:+.0f} % with {:.0f} %",
                                 100 * std::expm1(level->log_ratios.low),
                                 100 * std::expm1(level->log_ratios.high), 100 * level->level));
  }
  return fmt::format("{}", fmt::join(levels, ", "));
}

UnmeasuredOfRow unmeasured_in(const TrainPoint& point) {
  return unmeasured_of([&](const std::string& column) { return point.text(column); });
}

std::optional<uncertainty::StepExchanges> exchanges_of(const TrainPoint& point,
                                                       const cluster::Cluster& cluster) {
  return step_exchanges([&](const std::string& column) { return layout_size(point.text(column)); },
                        cluster);
}

// Rows on one cluster that are padded and differ in router and capacity alone: the widest band of
// one and the first like it; nothing where no two are such.
struct CapacityRows {
  std::optional<uncertainty::Band> band;
  bool are_all = true;  // all rows are such, of one kind
};

CapacityRows capacity_rows(const std::vector<TrainPoint>& points) {
  CapacityRows found;
  std::map<std::string, const TrainPoint*> firsts;
  std::optional<cluster::Cluster> cluster;
  for (const TrainPoint& point : points) {
    if (!point.row) continue;
    const auto key =
        all_but_capacity([&](const std::string& column) { return point.text(column); });
    found.are_all = found.are_all && key;
    if (!key) continue;
    const auto [first, is_new] = firsts.emplace(*key, &point);
    if (is_new) continue;
    if (!cluster) cluster = cluster::Cluster::load(point.text("cluster"));
    const auto exchanges = exchanges_of(point, *cluster);
    if (!exchanges) continue;
    uncertainty::Band band =
        capacity_pair_band(part_times(*first->second), part_times(point), *exchanges);
    widen_by_hidden(unmeasured_in(*first->second), unmeasured_in(point), band);
    const bool is_wider =
        !found.band || band.widest().log_ratios.width() > found.band->widest().log_ratios.width();
    if (is_wider) found.band = band;
  }
  found.are_all = found.are_all && firsts.size() == 1;
  return found;
}

// The ratio of the first row to the one to which it is known least, by the document of one's own
// software that made the rows; nothing: published software did.
struct OwnRatio {
  uncertainty::Band band;
  std::string rows;  // study::own_rows_text()
};
std::optional<OwnRatio> own_ratio(const TrainPoint& first, const std::vector<TrainPoint>& points) {
  const std::string path = first.text("software");
  if (!study::names_own_software(path)) return std::nullopt;
  const auto software = uncertainty::StepSoftware::load(path);
  const cluster::Cluster cluster = cluster::Cluster::load(first.text("cluster"));
  std::map<std::string, std::string> models;  // as typed: the name of the document
  const auto step_of = [&](const TrainPoint& point) -> std::optional<uncertainty::OwnStep> {
    const std::string typed = point.text("model");
    if (models.count(typed) == 0) models[typed] = model_in(typed);
    const auto exchanges = exchanges_of(point, cluster);
    if (!exchanges) return std::nullopt;
    return own_step(models[typed], point.text("precision"), part_times(point),
                    number_in(point.cell("step_ms")), *exchanges,
                    parse_number<double>(point.text(host_gain_column)));
  };
  OwnRatio found{{}, study::own_rows_text(software)};
  const auto one = step_of(first);
  for (const TrainPoint& point : points) {
    if (!one || !point.row || &point == &first) continue;
    const auto other = step_of(point);
    if (!other) continue;
    uncertainty::Band band =
        own_ratio_band(software, cluster.name, *one, *other,
                       unmeasured_between(unmeasured_in(first), unmeasured_in(point)));
    widen_by_hidden(unmeasured_in(first), unmeasured_in(point), band);
    if (found.band.levels.empty() || is_narrower(found.band, band)) found.band = band;
  }
  if (found.band.levels.empty()) return std::nullopt;
  return found;
}

// Where computing may hide more of one row than of another: ratios are no longer as far off on
// either side.
std::string hidden_note(const std::vector<TrainPoint>& points) {
  const bool any = std::any_of(points.begin(), points.end(), [](const TrainPoint& point) {
    return point.row && unmeasured_in(point).hidden > 0;
  });
  if (!any) return "";
  return "  wider by what computing may hide of exchanges of weights and gradients (ZeRO 2, 3); of "
         "the first row's speed over the other's\n";
}

// By published pairs, of the first row and that which differs most from it.
std::string published_text(const CommandLine& line, const TrainPoint& first,
                           const std::vector<TrainPoint>& points, bool same_model) {
  double farthest = 0;
  double unmeasured = 0;
  const UnmeasuredOfRow of_first = unmeasured_in(first);
  UnmeasuredOfRow most_hidden = of_first;
  UnmeasuredOfRow least_hidden = of_first;
  for (const TrainPoint& point : points) {
    if (!point.row) continue;
    const UnmeasuredOfRow of_point = unmeasured_in(point);
    unmeasured = std::max(unmeasured, unmeasured_between(of_first, of_point));
    most_hidden.hidden = std::max(most_hidden.hidden, of_point.hidden);
    least_hidden.hidden = std::min(least_hidden.hidden, of_point.hidden);
    if (!same_model) continue;
    farthest = std::max(farthest, uncertainty::step_distance(part_times(first), part_times(point)));
  }
  uncertainty::Band ratio =
      study::published_errors().ratio_band(first.software, same_model, farthest, unmeasured);
  widen_by_hidden(of_first, most_hidden, ratio);
  widen_by_hidden(of_first, least_hidden, ratio);
  return fmt::format(
      "{} is off by\n  {} chance,\n  by {} groups of published pairs, which differ in more than "
      "routing{}\n",
      same_model ? "the first and the most different step" : "steps", levels_text(ratio),
      ratio.held_out, line.has("software") ? "" : "; --software says whose steps count");
}

}  // namespace

std::string ratio_text(const CommandLine& line, const TrainGrid& grid,
                       const std::vector<TrainPoint>& points) {
  const auto varies = [&](const char* flag) {
    return std::any_of(grid.flags.begin(), grid.flags.end(),
                       [&](const Flag& one) { return one.name == flag; });
  };
  const auto first =
      std::find_if(points.begin(), points.end(), [](const TrainPoint& point) { return point.row; });
  if (first == points.end() || varies("software")) return "";
  if (varies("profile") || varies("cluster")) {
    if (line.has("baseline")) return "";
    return fmt::format(
        "how sure the ratio of two {} is: predict one with --out a.csv, then the others with "
        "--baseline a.csv\n",
        varies("profile") ? "machines" : "clusters");
  }
  constexpr const char* cancels =
      "between two rows errors of software and machine cancel: the measured ratio of ";
  const CapacityRows padded = capacity_rows(points);
  const std::optional<OwnRatio> own = own_ratio(*first, points);
  const bool by_capacity = padded.band && (!own || !is_narrower(own->band, *padded.band));
  if (by_capacity && padded.are_all) {
    return fmt::format("{}these is off by\n  {} chance,\n  by {}\n{}", cancels,
                       levels_text(*padded.band), capacity_pairs_text(), hidden_note(points));
  }
  std::string text = cancels;
  text += own ? fmt::format("the first and any other is off by at most\n  {} chance,\n  by {}\n",
                            levels_text(own->band), own->rows)
              : published_text(line, *first, points, !varies("model"));
  if (by_capacity) {
    text += fmt::format(
        "  but of rows that are padded to a capacity and differ in router and capacity alone by\n  "
        "{} chance,\n  by {}\n",
        levels_text(*padded.band), capacity_pairs_text());
  }
  return text + hidden_note(points);
}

}  // namespace moesim::tool
