#include "kernels/measure/fit/beyond_sizes.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/measure/fit/residual_figures.hpp"
#include "sim/base/error.hpp"
#include "sim/base/units.hpp"
#include "sim/profile/carried_ratio.hpp"

namespace moesim::kernels::measure {
namespace {

using nlohmann::ordered_json;

constexpr double smallest = 1024;
constexpr double largest = 16 * bytes_per_gib;
constexpr int digits = 7;

// One knot outside the measured sizes.
struct Beyond {
  double bytes = 0;
  double time_us = 0;
  double low_us = 0;  // of the two readings
  double high_us = 0;
};

// Knots from the edge on, the nearest first. `step`: 2 above the measured sizes, 1/2 below them.
std::vector<Beyond> knots_beyond(const profile::Profile& base, profile::Collective kind, int gpus,
                                 double edge, double edge_us, double step) {
  const auto usual = [&](double bytes) { return base.collective(kind, gpus, bytes).time_us; };
  const double usual_us = usual(edge);
  const double log = std::log(edge_us / usual_us);
  std::vector<Beyond> knots;
  double last_us = edge_us;
  for (double bytes = edge * step; bytes >= smallest && bytes <= largest; bytes *= step) {
    const double there_us = usual(bytes);
    const profile::CarriedRatio carried =
        profile::carry_beyond(log, bytes / edge, usual_us / there_us);
    // A profile's times do not fall with size, and the last piece rises.
    constexpr double rises = 1 + 1e-6;
    const double carried_us = there_us * std::exp(carried.log);
    const double time_us = significant(
        step > 1 ? std::max(carried_us, last_us * rises) : std::min(carried_us, last_us), digits);
    knots.push_back({bytes, time_us,
                     std::min(significant(there_us * std::exp(carried.low), digits), time_us),
                     std::max(significant(there_us * std::exp(carried.high), digits), time_us)});
    last_us = time_us;
  }
  return knots;
}

void go_on(const profile::Profile& base, profile::Collective kind, ordered_json& branch) {
  auto bytes = branch.at("bytes").get<std::vector<double>>();
  auto time_us = branch.at("time_us").get<std::vector<double>>();
  const int gpus = branch.at("gpus").get<int>();
  std::vector<Beyond> below, above;
  try {
    below = knots_beyond(base, kind, gpus, bytes.front(), time_us.front(), 0.5);
    above = knots_beyond(base, kind, gpus, bytes.back(), time_us.back(), 2);
  } catch (const UsageError&) {
    throw;
  } catch (const Error&) {
    return;  // the base does not know so many GPUs
  }
  if (below.empty() && above.empty()) return;
  ordered_json readings = {{"bytes", ordered_json::array()},
                           {"low_us", ordered_json::array()},
                           {"high_us", ordered_json::array()}};
  std::reverse(below.begin(), below.end());
  std::vector<double> all_bytes, all_us;
  const auto add = [&](const std::vector<Beyond>& knots) {
    for (const Beyond& knot : knots) {
      all_bytes.push_back(knot.bytes);
      all_us.push_back(knot.time_us);
      readings["bytes"].push_back(knot.bytes);
      readings["low_us"].push_back(knot.low_us);
      readings["high_us"].push_back(knot.high_us);
    }
  };
  add(below);
  all_bytes.insert(all_bytes.end(), bytes.begin(), bytes.end());
  all_us.insert(all_us.end(), time_us.begin(), time_us.end());
  add(above);
  branch["bytes"] = all_bytes;
  branch["time_us"] = all_us;
  branch["beyond"] = readings;
}

}  // namespace

void go_on_beyond_sizes(const profile::Profile& base, ordered_json& curve) {
  const profile::Collective kind =
      value_in(profile::collective_names, curve.at("op").get<std::string>(), "op");
  for (ordered_json& branch : curve.at("branches")) {
    if (!branch.contains("from_curve")) go_on(base, kind, branch);
  }
}

}  // namespace moesim::kernels::measure
