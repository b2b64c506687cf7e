#include "sim/study/validation/exchanges/cut_curve.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "sim/base/formats/document.hpp"
#include "sim/base/statistics.hpp"
#include "sim/base/units.hpp"

namespace moesim::study {
namespace {

using nlohmann::ordered_json;
using profile::CollectiveCurve;

ordered_json residual(const std::vector<SizeReach>& reaches) {
  ordered_json regions = ordered_json::array();
  double from = 0;
  double most = 0;
  for (const SizeReach& each : reaches) {
    const bool last = &each == &reaches.back();
    const double high = std::expm1(each.reach);
    regions.push_back({{"region", "sizes"},
                       {"from", from},
                       {"below", last ? ordered_json(nullptr) : ordered_json(each.below)},
                       {"median_abs", high / 2},
                       {"p90_abs", high},
                       {"q05", std::expm1(-each.reach)},
                       {"q95", high}});
    from = each.below;
    most = std::max(most, high);
  }
  return {{"by", "bytes"}, {"median_abs", most / 2}, {"p90_abs", most}, {"regions", regions}};
}

// The errors of measured sizes, each left out in turn: up to 1 MiB and above.
using SizeErrors = std::array<std::vector<double>, 2>;

void add_errors_between_sizes(const Samples& samples, SizeErrors& errors) {
  std::map<double, std::vector<double>> sizes;
  for (const auto& [size, time] : samples) sizes[size].push_back(time);
  if (sizes.size() < 3) return;
  for (auto at = std::next(sizes.begin()); std::next(at) != sizes.end(); ++at) {
    const auto before = std::prev(at);
    const auto after = std::next(at);
    const double share = (at->first - before->first) / (after->first - before->first);
    const double between_us = std::lerp(median(before->second), median(after->second), share);
    for (const double time : at->second) {
      errors.at(at->first > bytes_per_mib).push_back(std::abs(std::log(time / between_us)));
    }
  }
}

std::vector<SizeReach> reach_between_sizes(const SizeErrors& errors) {
  constexpr double level = 0.9;
  std::vector<SizeReach> reaches;
  for (const bool is_large : {false, true}) {
    const std::vector<double>& own = errors.at(is_large);
    const std::vector<double>& other = errors.at(!is_large);
    const std::vector<double>& known = own.empty() ? other : own;
    reaches.push_back(
        {is_large ? INFINITY : bytes_per_mib + 1, known.empty() ? 0 : quantile(known, level)});
  }
  return reaches;
}

struct Knots {
  std::vector<double> bytes;
  std::vector<double> time_us;
};

std::optional<Knots> knots_of(const Samples& samples) {
  const auto curve = curve_through(samples, 0);
  if (!curve) return std::nullopt;
  Knots knots;
  for (const auto& [size, least] : least_of_each(samples)) {
    if (size < curve->smallest() || size > curve->largest()) continue;
    const double time_us = curve->time_us(size);
    // Rounded times may end level, which curve_through() ends without.
    if (size == curve->largest() && knots.time_us.back() == time_us) return std::nullopt;
    knots.bytes.push_back(size);
    knots.time_us.push_back(time_us);
  }
  return knots;
}

}  // namespace

std::optional<CollectiveCurve> curve_cut_to(profile::Collective kind,
                                            const profile::NodeLinks& links, const Counts& counts,
                                            const std::vector<int>& kept, int up_to,
                                            const CutErrors& errors) {
  ordered_json branches = ordered_json::array();
  std::set<double> sizes;
  SizeErrors between;
  for (const int gpus : kept) {
    const auto knots = knots_of(counts.at(gpus));
    if (!knots) return std::nullopt;
    sizes.insert(knots->bytes.begin(), knots->bytes.end());
    add_errors_between_sizes(counts.at(gpus), between);
    branches.push_back({{"gpus", gpus},
                        {"origin", errors.scatter.empty() ? "measured" : "published"},
                        {"bytes", knots->bytes},
                        {"time_us", knots->time_us},
                        {"measured_bytes", knots->bytes}});
  }
  ordered_json document = {{"op", profile::name_of(kind)},
                           {"params", {{"nccl", "of the run"}, {"dtype", "any"}}},
                           {"default", true},
                           {"model", "piecewise-alpha-beta"},
                           {"branches", branches},
                           {"measured_bytes", sizes},
                           {"residual", residual(reach_between_sizes(between))}};
  if (!errors.law.empty() && up_to > kept.back()) {
    document["law"] = {{"up_to", up_to}, {"residual", residual(errors.law)}};
  }
  if (!errors.scatter.empty()) {
    document["scatter"] = {{"any_version", residual(errors.scatter)},
                           {"same_version", residual(errors.scatter)}};
  }
  const Document parsed = Document::parse(document.dump(), "a run cut to fewer GPUs");
  return CollectiveCurve(parsed.root(), links);
}

}  // namespace moesim::study
