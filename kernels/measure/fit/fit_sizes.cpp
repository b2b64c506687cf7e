#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "kernels/measure/fit/fit.hpp"
#include "kernels/measure/fit/residual_figures.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/base/statistics.hpp"
#include "sim/profile/collective_curve.hpp"
#include "sim/profile/size_curve.hpp"

namespace moesim::kernels::measure {
namespace {

using nlohmann::ordered_json;

constexpr int digits = 7;

// Times by size; of several points of one size the median.
using Sizes = std::map<double, double>;

Sizes by_size(const std::map<double, std::vector<double>>& times) {
  Sizes sizes;
  for (const auto& [bytes, each] : times) sizes[bytes] = median(each);
  return sizes;
}

struct Knots {
  std::vector<double> bytes;
  std::vector<double> time_us;
};

// The nearest sequence that never falls (pool adjacent violators; Barlow et al. 1972), its last
// piece rising by at least the smallest step that a document can carry.
Knots rising(const Sizes& sizes) {
  struct Pool {
    double sum;
    double count;
  };
  std::vector<Pool> pools;
  for (const auto& [bytes, time_us] : sizes) {
    pools.push_back({time_us, 1});
    while (pools.size() > 1) {
      Pool& last = pools.back();
      Pool& before = pools[pools.size() - 2];
      if (before.sum / before.count <= last.sum / last.count) break;
      before = {before.sum + last.sum, before.count + last.count};
      pools.pop_back();
    }
  }
  Knots knots;
  for (const auto& [bytes, time_us] : sizes) knots.bytes.push_back(bytes);
  for (const Pool& pool : pools) {
    knots.time_us.insert(knots.time_us.end(), static_cast<std::size_t>(pool.count),
                         significant(pool.sum / pool.count, digits));
  }
  double& last = knots.time_us.back();
  if (last <= knots.time_us[knots.time_us.size() - 2]) last *= 1 + 1e-6;
  return knots;
}

// Whether a time fell with size by so much that the knots are another one.
bool is_averaged(const Sizes& sizes, const Knots& knots) {
  return std::any_of(
      sizes.begin(), sizes.end(), [&, knot = std::size_t{0}](const auto& size) mutable {
        return std::abs(knots.time_us[knot++] / size.second - 1) >= profile::apart_from_curve;
      });
}

double time_at(const Knots& knots, double bytes) {
  return profile::SizeCurve(knots.bytes, knots.time_us).time_us(bytes);
}

// Each inner size predicted from the others.
std::vector<HeldOut> leave_one_out(const Sizes& sizes, bool by_bytes) {
  std::vector<HeldOut> held;
  for (auto each = std::next(sizes.begin()); std::next(each) != sizes.end(); ++each) {
    Sizes others = sizes;
    others.erase(each->first);
    const double predicted = time_at(rising(others), each->first);
    held.push_back({each->second, predicted, by_bytes ? each->first : predicted});
  }
  return held;
}

// Every size against the curve that saw it.
std::vector<HeldOut> in_sample(const Sizes& sizes) {
  const Knots knots = rising(sizes);
  std::vector<HeldOut> held;
  for (const auto& [bytes, time_us] : sizes)
    held.push_back({time_us, time_at(knots, bytes), bytes});
  return held;
}

bool counts(const Point& point, const std::string& op) {
  return point.op == op && !point.synthetic && point.time_us().has_value();
}

// The branches of a curve by GPU count, each with the errors and the measured sizes that it has
// there: beside branches of another run those of the curve are no longer its own.
std::map<int, ordered_json> kept_branches(const ordered_json& prior) {
  std::map<int, ordered_json> branches;
  if (prior.is_null()) return branches;
  ordered_json from = {{"nccl", prior.at("params").at("nccl")}};
  for (const char* key : {"source", "residual", "residual_at_measured", "scatter", "tail"}) {
    if (prior.contains(key)) from[key] = prior[key];
  }
  for (ordered_json branch : prior.at("branches")) {
    if (!branch.contains("measured_bytes")) branch["measured_bytes"] = prior.at("measured_bytes");
    if (!branch.contains("from_curve")) branch["from_curve"] = from;
    const int gpus = branch.at("gpus");
    branches[gpus] = std::move(branch);
  }
  return branches;
}

}  // namespace

std::optional<ordered_json> fit_memory(const std::vector<Point>& points, const std::string& kernel,
                                       const std::string& source) {
  std::map<double, std::vector<double>> times;
  for (const Point& point : points) {
    if (!counts(point, "memory") || point.params.at("kernel") != kernel) continue;
    times[point.params.at("bytes")].push_back(*point.time_us());
  }
  if (times.size() < fewest_sizes) return std::nullopt;
  const Sizes sizes = by_size(times);
  const Knots knots = rising(sizes);
  const std::size_t last = knots.bytes.size() - 1;
  const double bandwidth = 1e6 * (knots.bytes[last] - knots.bytes[last - 1]) /
                           (knots.time_us[last] - knots.time_us[last - 1]);
  return ordered_json{
      {"op", "memory"},
      {"params", {{"kernel", kernel}}},
      {"model", "piecewise-alpha-beta"},
      {"valid", {{"bytes", {knots.bytes.front(), knots.bytes.back()}}}},
      {"residual", residual_figures(leave_one_out(sizes, false), "time_us",
                                    "each measured size left out in turn", 5)},
      {"source", source},
      {"origin", "measured"},
      {"note", "Beyond the largest size constant bandwidth, below the smallest the floor."},
      {"bytes", knots.bytes},
      {"time_us", knots.time_us},
      {"achieved_bytes_per_second", significant(bandwidth, 4)}};
}

std::optional<ordered_json> fit_collective(const std::vector<Point>& points, const std::string& op,
                                           const std::string& nccl, const ordered_json& prior,
                                           const std::string& source) {
  std::map<int, std::map<double, std::vector<double>>> times;
  for (const Point& point : points) {
    if (!counts(point, op) || point.params.at("pattern") != "equal") continue;
    times[point.params.at("gpus").get<int>()][point.params.at("bytes")].push_back(*point.time_us());
  }
  std::erase_if(times, [](const auto& each) { return each.second.size() < fewest_sizes; });
  if (times.empty()) return std::nullopt;
  std::map<int, ordered_json> branches = kept_branches(prior);
  std::set<double> measured_bytes;
  std::vector<HeldOut> held, seen;
  for (const auto& [gpus, each] : times) {
    const Sizes sizes = by_size(each);
    const Knots knots = rising(sizes);
    branches[gpus] = {{"gpus", gpus},
                      {"origin", "measured"},
                      {"bytes", knots.bytes},
                      {"time_us", knots.time_us},
                      {"measured_bytes", knots.bytes}};
    if (is_averaged(sizes, knots)) {
      ordered_json& measured_us = branches[gpus]["measured_time_us"];
      for (const auto& [bytes, time_us] : sizes)
        measured_us.push_back(significant(time_us, digits));
    }
    measured_bytes.insert(knots.bytes.begin(), knots.bytes.end());
    for (const HeldOut& error : leave_one_out(sizes, true)) held.push_back(error);
    for (const HeldOut& error : in_sample(sizes)) seen.push_back(error);
  }
  ordered_json list = ordered_json::array();
  for (const auto& [gpus, branch] : branches) list.push_back(branch);
  ordered_json curve = {
      {"op", op},
      {"params", {{"nccl", nccl}, {"dtype", "bf16"}}},
      {"default", true},
      {"model", "piecewise-alpha-beta"},
      {"branches", list},
      {"measured_bytes", measured_bytes},
      {"valid",
       {{"gpus", {times.begin()->first, times.rbegin()->first}},
        {"bytes", {*measured_bytes.begin(), *measured_bytes.rbegin()}}}},
      {"residual", residual_figures(held, "bytes", "each measured size left out in turn", 4)},
      {"residual_at_measured",
       residual_figures(seen, "bytes", "every size against the fit that saw it", 4)},
      {"source", source},
      {"origin", "measured"},
      {"note", "Branches of GPU counts that were not measured keep their own origin and errors."}};
  // The law for more GPUs goes on where the measured branches end.
  if (!prior.is_null() && prior.contains("law") &&
      prior["law"]["up_to"].get<int>() > branches.rbegin()->first) {
    curve["law"] = prior["law"];
  }
  return curve;
}

std::optional<ordered_json> fit_row_moves(const std::vector<Point>& points, const std::string& op,
                                          const ordered_json& streaming,
                                          const std::string& source) {
  const profile::SizeCurve curve(Document::parse(streaming.dump(), "streaming").root());
  std::vector<HeldOut> measured;  // `where` holds the bytes until the share is known
  std::vector<double> shares;
  for (const Point& point : points) {
    if (!counts(point, op)) continue;
    const double bytes = point.params.at("bytes"), time_us = *point.time_us();
    measured.push_back({time_us, 0, bytes});
    // Below twice the launch floor the share of the bandwidth does not show.
    if (time_us < 2 * curve.time_us(1)) continue;
    // The bytes that a stream moves in that time, by bisection: the curve rises.
    double low = 1, high = 1e15;
    while (high > low * (1 + 1e-9)) {
      const double middle = std::sqrt(low * high);
      (curve.time_us(middle) < time_us ? low : high) = middle;
    }
    shares.push_back(bytes / high);
  }
  if (shares.size() < fewest_sizes) return std::nullopt;
  double least = measured.front().where, most = least;
  const double share = std::min(1.0, significant(median(shares), 4));
  for (HeldOut& each : measured) {
    least = std::min(least, each.where);
    most = std::max(most, each.where);
    each.predicted_us = curve.time_us(each.where / share);
    each.where = each.predicted_us;
  }
  return ordered_json{
      {"op", op},
      {"params", ordered_json::object()},
      {"model", "share-of-memory-curve"},
      {"efficiency", share},
      {"valid", {{"bytes", {least, most}}}},
      {"residual",
       residual_figures(measured, "time_us", "one share for all points, from their median", 5)},
      {"source", source},
      {"origin", "measured"}};
}

}  // namespace moesim::kernels::measure
