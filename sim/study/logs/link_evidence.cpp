#include "sim/study/logs/link_evidence.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace moesim::study {

using cluster::MeasuredExchange;

std::string described(const MeasuredExchange& measured) {
  return fmt::format("{} of {} GPUs on {} {}", name_of(measured.operation), measured.gpus,
                     measured.nodes, measured.nodes == 1 ? "node" : "nodes");
}

std::string runs_of(const MeasuredExchange& measured) {
  const std::string prefix = "measured: ";
  return measured.origin.substr(measured.origin.starts_with(prefix) ? prefix.size() : 0);
}

std::string by_model(const std::shared_ptr<const profile::Profile>& profile) {
  return profile ? fmt::format(" (by the model with profile {})", profile->name()) : "";
}

std::vector<double> values(const std::vector<Evidence>& found) {
  std::vector<double> values;
  for (const Evidence& each : found) values.push_back(each.value);
  return values;
}

std::string files(const std::vector<Evidence>& found) {
  std::set<std::string> names;
  for (const Evidence& each : found) names.insert(each.file);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string origin(const std::vector<Evidence>& found) {
  std::set<std::string> from;
  for (const Evidence& each : found) from.insert(each.from + ", " + each.file);
  return fmt::format("measured: {}", fmt::join(from, "; "));
}

double rounded(double value) { return std::round(value * 1e4) / 1e4; }

Evidence with_runs(Evidence share, const MeasuredExchange& measured) {
  if (measured.p05_us.empty()) return share;
  const double time_us = measured.time_us.back();
  share.low = share.value * time_us / measured.p95_us.back();
  share.high = share.value * time_us / measured.p05_us.back();
  return share;
}

FittedShare efficiency_of(const std::vector<Evidence>& found) {
  FittedShare share = share_of(values(found));
  for (const Evidence& each : found) {
    if (each.high == 0) continue;
    share.low = std::min(share.low, each.low);
    share.high = std::min(1.0, std::max(share.high, each.high));
  }
  return share;
}

}  // namespace moesim::study
