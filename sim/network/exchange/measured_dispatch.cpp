#include "sim/network/exchange/measured_dispatch.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <map>
#include <set>

#include "sim/profile/residual.hpp"

namespace moesim::network {
namespace {

using cluster::MeasuredDispatch;
using profile::Dispatcher;
using profile::DispatchLoad;
using profile::Estimate;
using profile::MoeStage;

// Runs of one setting on other days and machines differ by as much.
constexpr double least_spread = 0.06;
// Assumed: no log says how far the two formats err apart.
constexpr double octaves_of_other_format = 1;

std::size_t at(MoeStage stage) { return static_cast<std::size_t>(stage); }

double octaves_between(double one, double other) { return std::abs(one - other); }

// Nodes that the group's GPUs lie in: those of each domain that it touches, or of a node with
// several domains the share.
int nodes_of(const profile::DispatchGroup& group, const cluster::Cluster& cluster) {
  const auto of = [&](int gpus) {
    return (gpus + cluster.gpus_per_node - 1) / cluster.gpus_per_node;
  };
  if (cluster.gpus_per_domain < cluster.gpus_per_node) return of(group.gpus);
  return group.domains() * of(std::min(group.gpus, group.per_domain));
}

// Whether two devices are of one architecture, and so share their figures.
bool same_figures(const Dispatcher& dispatcher, const std::string& one, const std::string& other) {
  const auto names = [](const profile::DispatchMachine& machine, const std::string& device) {
    return machine.gpus.empty() ||
           std::any_of(machine.gpus.begin(), machine.gpus.end(), [&](const std::string& part) {
             return device.find(part) != std::string::npos;
           });
  };
  for (const profile::DispatchMachine& machine : dispatcher.machines) {
    if (names(machine, one) || names(machine, other)) {
      return names(machine, one) && names(machine, other);
    }
  }
  return false;
}

}  // namespace

// What the law's time is scaled by, in natural logarithms.
struct MeasuredDispatcher::Correction {
  double factor = 0;
  double below = 0;  // from there to the ends of the band at what was measured
  double above = 0;
  double octaves = 0;  // away from it

  // Interpolates between what was measured at some counts, by their logarithms.
  static Correction between(const std::map<double, Correction>& measured, double where);
  // The correction that repeats of one point give.
  static Correction of(const std::vector<double>& factors);
};

MeasuredDispatcher::Correction MeasuredDispatcher::Correction::between(
    const std::map<double, Correction>& measured, double where) {
  const auto upper = measured.lower_bound(where);
  if (upper == measured.begin() || upper == measured.end()) {
    const auto& [nearest, held] = upper == measured.end() ? *measured.rbegin() : *upper;
    Correction beyond = held;
    beyond.octaves += octaves_between(nearest, where);
    return beyond;
  }
  const double low_at = std::prev(upper)->first;
  const double high_at = upper->first;
  const Correction& low = std::prev(upper)->second;
  const Correction& high = upper->second;
  const double share = (where - low_at) / (high_at - low_at);
  const auto mixed = [&](double Correction::*part) {
    return (1 - share) * low.*part + share * high.*part;
  };
  const double tied = share * (1 - share) * (high_at - low_at);
  return {mixed(&Correction::factor), mixed(&Correction::below), mixed(&Correction::above),
          mixed(&Correction::octaves) + tied};
}

MeasuredDispatcher::Correction MeasuredDispatcher::Correction::of(
    const std::vector<double>& factors) {
  double sum = 0;
  for (const double factor : factors) sum += factor;
  const double mean = sum / static_cast<double>(factors.size());
  const auto [least, most] = std::minmax_element(factors.begin(), factors.end());
  return {mean, std::max(mean - *least, -std::log(1 - least_spread)),
          std::max(*most - mean, std::log(1 + least_spread)), 0};
}

MeasuredDispatcher::MeasuredDispatcher(const Dispatcher& dispatcher, const DispatchPlace& place,
                                       const cluster::Cluster& cluster)
    : dispatcher_(dispatcher), place_(place) {
  const int nodes = nodes_of(place.group, cluster);
  std::set<std::string> origins;
  for (const MeasuredDispatch& entry : cluster.dispatches) {
    if (entry.dispatcher != dispatcher.name || entry.nodes != nodes ||
        entry.gpus != place.group.gpus) {
      continue;
    }
    if (!entry.gpu.empty() && !same_figures(dispatcher, place.device, entry.gpu)) continue;
    const MoeStage stage = entry.stage == "dispatch" ? MoeStage::dispatch : MoeStage::combine;
    points_[at(stage)].push_back(point_of(entry, stage));
    origins.insert(entry.origin);
  }
  for (const std::string& each : origins) origin_ += (origin_.empty() ? "" : "; ") + each;
}

// One where the kernels take what they find.
int MeasuredDispatcher::sms_of(int stated) const {
  if (dispatcher_.usual_sms == 0) return 1;
  return stated > 0 ? stated : dispatcher_.usual_sms;
}

MeasuredDispatcher::Point MeasuredDispatcher::point_of(const MeasuredDispatch& measured,
                                                       MoeStage stage) const {
  const bool fp8 = stage == MoeStage::dispatch && measured.row_format == "fp8";
  const DispatchLoad load =
      profile::balanced_load(dispatcher_.sent, stage, {measured.experts, measured.top_k, 0},
                             place_.group, static_cast<double>(measured.tokens));
  const auto hidden = static_cast<double>(measured.hidden);
  const double row = profile::dispatched_row_bytes(dispatcher_, stage, hidden, fp8);
  const int sms = sms_of(measured.sms);
  profile::DispatchRates rates = place_.rates;
  rates.in_training = false;  // logs are of a library's own test
  const Estimate law = profile::dispatch_time(
      dispatcher_, {place_.device, stage, place_.group, load, row, rates, sms});
  return {fp8,
          std::log2(load.tokens),
          std::log2(sms),
          std::log2(hidden),
          std::log2(static_cast<double>(measured.top_k)),
          std::log(measured.time_us / law.time_us)};
}

MeasuredDispatcher::Correction MeasuredDispatcher::correction_at(const DispatchQuery& query,
                                                                 double tokens) const {
  const std::vector<Point>& points = points_[at(query.stage)];
  const bool fp8 = query.stage == MoeStage::dispatch && query.fp8;
  const bool has_format = std::any_of(points.begin(), points.end(),
                                      [&](const Point& point) { return point.fp8 == fp8; });
  // The points of the nearest shape, for each count of tokens and of SMs.
  struct Nearest {
    double octaves = 0;
    std::vector<double> factors;
  };
  std::map<double, std::map<double, Nearest>> nearest;
  for (const Point& point : points) {
    if (has_format && point.fp8 != fp8) continue;
    const double octaves =
        octaves_between(point.hidden, std::log2(static_cast<double>(query.hidden))) +
        octaves_between(point.top_k, std::log2(static_cast<double>(query.top_k)));
    auto& [found, factors] = nearest[point.tokens][point.sms];
    if (factors.empty() || octaves < found) {
      found = octaves;
      factors.clear();
    }
    if (octaves == found) factors.push_back(point.factor);
  }
  std::map<double, Correction> by_tokens;
  for (const auto& [count, at_sms] : nearest) {
    std::map<double, Correction> by_sms;
    for (const auto& [sms, found] : at_sms) {
      by_sms[sms] = Correction::of(found.factors);
      by_sms[sms].octaves = found.octaves;
    }
    by_tokens[count] = Correction::between(by_sms, std::log2(sms_of(query.sms)));
  }
  Correction correction = Correction::between(by_tokens, std::log2(std::max(tokens, 1.0)));
  if (!has_format) correction.octaves += octaves_of_other_format;
  return correction;
}

Estimate MeasuredDispatcher::time(const DispatchQuery& query, const DispatchLoad& load,
                                  const profile::DispatchRates& rates) const {
  const Estimate law = profile::dispatch_time(
      dispatcher_,
      {place_.device, query.stage, place_.group, load, query.row_bytes, rates, query.sms});
  if (points_[at(query.stage)].empty()) return law;
  const Correction correction = correction_at(query, load.tokens);
  const double widen = profile::widening(correction.octaves);
  const double share = std::sqrt(std::min(1.0, correction.octaves));
  Estimate measured = law;
  measured.time_us = law.time_us * std::exp(correction.factor);
  measured.time_us_p05 =
      measured.time_us * std::exp(-std::hypot(correction.below * widen,
                                              share * std::log(law.time_us_p05 / law.time_us)));
  measured.time_us_p95 =
      measured.time_us * std::exp(std::hypot(correction.above * widen,
                                             share * std::log(law.time_us_p95 / law.time_us)));
  return measured;
}

std::string MeasuredDispatcher::provenance(int sms, bool with_notify) const {
  Dispatcher named = dispatcher_;
  for (profile::DispatchMachine& machine : named.machines) {
    if (!origin_.empty()) machine.origin = origin_ + ", over " + machine.origin;
  }
  return dispatch_provenance(named, place_, sms, with_notify);
}

}  // namespace moesim::network
