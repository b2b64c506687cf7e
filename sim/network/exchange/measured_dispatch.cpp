#include "sim/network/exchange/measured_dispatch.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/cluster/measured_between.hpp"
#include "sim/profile/residual.hpp"

namespace moesim::network {
namespace {

using cluster::MeasuredDispatch;
using profile::Dispatcher;
using profile::DispatcherStage;
using profile::DispatchLoad;
using profile::Estimate;

// Runs of one setting on other days and machines differ by as much.
constexpr double least_spread = 0.06;
// Assumed: no log says how far the two formats err apart.
constexpr double octaves_of_other_format = 1;

std::size_t at(DispatcherStage stage) { return static_cast<std::size_t>(stage); }

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

DispatcherStage stage_of(const MeasuredDispatch& entry) {
  return entry.stage == "dispatch" ? DispatcherStage::dispatch : DispatcherStage::combine;
}

// Whether an entry is of this dispatcher, on a GPU that shares the figures of `device`.
bool answers(const MeasuredDispatch& entry, const Dispatcher& dispatcher,
             const std::string& device) {
  return entry.dispatcher == dispatcher.name &&
         (entry.gpu.empty() || same_figures(dispatcher, device, entry.gpu));
}

// Where an entry between domains was measured, by the NICs' transport of `here`.
DispatchPlace place_of(const MeasuredDispatch& entry, const cluster::Cluster& cluster,
                       const DispatchPlace& here) {
  const int nodes_of_domain = std::max(cluster.gpus_per_domain / cluster.gpus_per_node, 1);
  const int per_domain =
      cluster.gpus_per_domain == 1 ? 1 : entry.gpus / entry.nodes * nodes_of_domain;
  DispatchPlace place = dispatch_place(here.device, cluster, {entry.gpus, per_domain});
  place.rates.transport = here.rates.transport;
  place.rates.transport_known = here.rates.transport_known;
  return place;
}

}  // namespace

// What the law's time is scaled by, in natural logarithms.
struct MeasuredDispatcher::Correction {
  double factor = 0;
  double below = 0;  // from there to the ends of the band at what was measured
  double above = 0;
  double octaves = 0;  // away from it
  double reading = 0;  // from there to what else it may be, to either side

  // Becomes the correction on so many octaves more or fewer nodes.
  void halve(double octaves_in_nodes) {
    factor /= 2;
    reading = std::abs(factor);
    octaves += octaves_in_nodes;
  }
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
          mixed(&Correction::octaves) + tied, 0};
}

MeasuredDispatcher::Correction MeasuredDispatcher::Correction::of(
    const std::vector<double>& factors) {
  double sum = 0;
  for (const double factor : factors) sum += factor;
  const double mean = sum / static_cast<double>(factors.size());
  const auto [least, most] = std::minmax_element(factors.begin(), factors.end());
  return {mean, std::max(mean - *least, -std::log(1 - least_spread)),
          std::max(*most - mean, std::log(1 + least_spread)), 0, 0};
}

MeasuredDispatcher::MeasuredDispatcher(Dispatcher dispatcher, DispatchPlace place)
    : dispatcher_(std::move(dispatcher)), place_(std::move(place)) {}

MeasuredDispatcher::MeasuredDispatcher(const Dispatcher& dispatcher, const DispatchPlace& place,
                                       const cluster::Cluster& cluster)
    : MeasuredDispatcher(dispatcher, place) {
  if (cluster.dispatches.empty()) return;
  const int nodes = nodes_of(place.group, cluster);
  take_same(cluster, nodes);
  if (place.group.crosses()) take_others(cluster, nodes);
}

void MeasuredDispatcher::take_same(const cluster::Cluster& cluster, int nodes) {
  std::set<std::string> origins;
  for (const MeasuredDispatch& entry : cluster.dispatches) {
    if (entry.nodes != nodes || entry.gpus != place_.group.gpus) continue;
    if (!answers(entry, dispatcher_, place_.device)) continue;
    points_[at(stage_of(entry))].push_back(point_of(entry, stage_of(entry)));
    origins.insert(entry.origin);
  }
  origin_ = fmt::format("{}", fmt::join(origins, "; "));
}

void MeasuredDispatcher::take_others(const cluster::Cluster& cluster, int nodes) {
  std::set<std::string> origins;
  for (const DispatcherStage stage : {DispatcherStage::dispatch, DispatcherStage::combine}) {
    if (!points_[at(stage)].empty()) continue;
    const MeasuredDispatch* nearest = nullptr;
    const auto octaves = [&](const MeasuredDispatch& entry) {
      return std::abs(std::log2(static_cast<double>(entry.nodes) / nodes));
    };
    for (const MeasuredDispatch& entry : cluster.dispatches) {
      if (stage_of(entry) != stage || !answers(entry, dispatcher_, place_.device)) continue;
      if (!crosses_domains(cluster, entry.nodes)) continue;
      const bool nearer = nearest == nullptr || octaves(entry) < octaves(*nearest) ||
                          (octaves(entry) == octaves(*nearest) && entry.nodes > nearest->nodes);
      if (nearer) nearest = &entry;
    }
    if (nearest == nullptr) continue;
    try {
      MeasuredDispatcher there(dispatcher_, place_of(*nearest, cluster, place_));
      there.take_same(cluster, nearest->nodes);
      points_[at(stage)] = std::move(there.points_[at(stage)]);
      elsewhere_[at(stage)] = std::max(octaves(*nearest), 1.0);
      origins.insert(
          fmt::format("half of the factor on {} nodes ({})", nearest->nodes, there.origin_));
    } catch (const Error&) {
      why_unanswered();  // by the law at that place, such as domains of unequal numbers of GPUs
    }
  }
  if (origins.empty()) return;
  origin_ += fmt::format("{}{}", origin_.empty() ? "" : "; ", fmt::join(origins, "; "));
}

// One where the kernels take what they find.
int MeasuredDispatcher::sms_of(int stated) const {
  if (dispatcher_.usual_sms == 0) return 1;
  return stated > 0 ? stated : dispatcher_.usual_sms;
}

MeasuredDispatcher::Point MeasuredDispatcher::point_of(const MeasuredDispatch& measured,
                                                       DispatcherStage stage) const {
  const bool fp8 = stage == DispatcherStage::dispatch && measured.row_format == "fp8";
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
  const bool fp8 = query.stage == DispatcherStage::dispatch && query.fp8;
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
  const profile::DispatchCall call{place_.device,   query.stage, place_.group, load,
                                   query.row_bytes, rates,       query.sms};
  const Estimate law = profile::dispatch_time(dispatcher_, call);
  if (points_[at(query.stage)].empty()) return law;
  Correction correction = correction_at(query, load.tokens);
  if (const double octaves = elsewhere_[at(query.stage)]; octaves > 0) correction.halve(octaves);
  const double widen = profile::widening(correction.octaves);
  const double share = std::sqrt(std::min(1.0, correction.octaves));
  Estimate measured = law;
  measured.time_us = law.time_us * std::exp(correction.factor);
  const auto end = [&](double spread, double law_us) {
    return std::exp(
        std::hypot(spread * widen, share * std::log(law_us / law.time_us), correction.reading));
  };
  measured.time_us_p05 = measured.time_us / end(correction.below, law.time_us_p05);
  measured.time_us_p95 = measured.time_us * end(correction.above, law.time_us_p95);
  profile::no_faster_than_wire(call, measured);
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
