#include "sim/network/exchange/exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/network/flows/flow_times.hpp"
#include "sim/network/ports/port_bound.hpp"
#include "sim/network/schedules/schedule.hpp"
#include "sim/network/topology/lean_topology.hpp"
#include "sim/profile/moe_exchange_law.hpp"

namespace moesim::network {
namespace {

constexpr std::array<std::pair<Schedule, const char*>, 6> schedule_names{{
    {Schedule::burst, "burst"},
    {Schedule::pairwise, "pairwise"},
    {Schedule::nccl, "nccl"},
    {Schedule::hierarchical, "hierarchical"},
    {Schedule::pxn, "pxn"},
    {Schedule::deepep, "deepep"},
}};
constexpr std::array<std::pair<Method, const char*>, 3> method_names{{
    {Method::automatic, "auto"},
    {Method::flows, "flows"},
    {Method::fast, "fast"},
}};

std::size_t at(int index) { return static_cast<std::size_t>(index); }

template <class Names>
std::string list_of(const Names& names) {
  std::string list;
  for (const auto& entry : names) list += (list.empty() ? "" : ", ") + std::string(entry.second);
  return list;
}

template <class Names>
auto parse(const Names& names, const std::string& text, const char* what) {
  for (const auto& [value, name] : names) {
    if (text == name) return value;
  }
  throw UsageError(fmt::format("{} '{}' is not known: choose {}", what, text, list_of(names)));
}

void check_request(const ExchangeRequest& request) {
  const ExchangeSettings& settings = request.settings;
  const int ranks = request.topology.ranks();
  if (request.bytes.ranks() != ranks || request.start.size() != at(ranks)) {
    throw UsageError(fmt::format(
        "an exchange of {} ranks with {} start times on a topology of {}: expected the same number",
        request.bytes.ranks(), request.start.size(), ranks));
  }
  for (int source = 0; source < ranks; ++source) {
    const std::int64_t* row = request.bytes.row(source);
    const std::int64_t* negative =
        std::find_if(row, row + ranks, [](std::int64_t bytes) { return bytes < 0; });
    if (negative != row + ranks) {
      throw UsageError(fmt::format("byte matrix, row {}, column {}: {} bytes: expected 0 or more",
                                   source, negative - row, *negative));
    }
    if (request.start[at(source)] < Picoseconds(0)) {
      throw UsageError(fmt::format("rank {} starts before time 0", source));
    }
  }
  if (!(settings.distinct_share > 0 && settings.distinct_share <= 1)) {
    throw UsageError(fmt::format("a distinct share of {}: expected more than 0, at most 1",
                                 settings.distinct_share));
  }
  if (settings.slices < 1 || settings.nccl.channels < 1 || settings.nccl.batch < 1 ||
      settings.nccl.parts < 1 || !(settings.nccl.low_latency_overhead >= 1)) {
    throw UsageError("slices, channels, batch, parts and LL overhead are at least 1");
  }
}

// The latest that one bound of one rank, or of the makespan, can be off.
double worst_slack(const PortBound& bound) {
  double worst = bound.slack();
  for (std::size_t rank = 0; rank < bound.rank_lower.size(); ++rank) {
    if (bound.rank_lower[rank].count == 0) continue;
    const double gap = static_cast<double>((bound.rank_upper[rank] - bound.rank_lower[rank]).count);
    // A rank may finish early: what counts is how far it is off within the exchange.
    worst = std::max(worst, gap / static_cast<double>(bound.lower.count));
  }
  return worst;
}

bool accepts(const ExchangeSettings& settings, const PortBound& bound) {
  if (settings.method == Method::flows) return false;
  return settings.method == Method::fast || worst_slack(bound) <= settings.tolerance;
}

ExchangeTimes from_bound(PortBound bound) {
  const Picoseconds upper = bound.exact ? bound.lower : bound.upper;
  return {bound.lower, std::move(bound.rank_lower), Method::fast, bound.lower, upper, {}};
}

ExchangeTimes from_plan(const MessagePlan& plan, const ExchangeRequest& request) {
  MessagePlan::Times times = plan.run(request.topology, request.settings.progress);
  return {times.makespan, std::move(times.rank_finish),
          Method::flows,  times.makespan,
          times.makespan, {}};
}

// All messages at once, on the links that can hold them back.
ExchangeTimes burst_of_flows(const ExchangeRequest& request) {
  const LeanTopology lean(request.topology);
  const int ranks = request.bytes.ranks();
  std::vector<Flow> flows;
  for (int source = 0; source < ranks; ++source) {
    for (int destination = 0; destination < ranks; ++destination) {
      const std::int64_t bytes = request.bytes.at(source, destination);
      if (bytes == 0 || source == destination) continue;
      flows.push_back({source, destination, bytes,
                       request.start[at(source)] + lean.delay(source, destination)});
    }
  }
  FlowOptions options;
  options.tolerance = flow_tolerance(ranks);
  const FlowTimes found = run_flows(lean.links(), flows, options);
  ExchangeTimes times;
  times.rank_finish.resize(at(ranks));
  for (std::size_t flow = 0; flow < flows.size(); ++flow) {
    for (const int rank : {flows[flow].source, flows[flow].destination}) {
      times.rank_finish[at(rank)] = std::max(times.rank_finish[at(rank)], found.finish[flow]);
    }
    times.makespan = std::max(times.makespan, found.finish[flow]);
  }
  times.lower = times.upper = times.makespan;
  if (found.counts.dense) times.tolerance = options.tolerance;
  return times;
}

// refine() leaves gaps of a part in some hundreds: it cannot help below that.
constexpr double finest = 1e-3;

ExchangeTimes burst(const ExchangeRequest& request) {
  const ExchangeSettings& settings = request.settings;
  if (settings.method != Method::flows) {
    PortBounder bounder(request.topology);
    PortBound bound = bounder.bound(request.bytes, request.start);
    const bool wide = worst_slack(bound) > std::min(settings.tolerance, finest);
    if (wide && (settings.method == Method::fast || settings.tolerance >= finest)) {
      bounder.refine(request.bytes, request.start, bound);
    }
    if (accepts(settings, bound)) return from_bound(std::move(bound));
  }
  return burst_of_flows(request);
}

bool start_together(std::span<const Picoseconds> start) {
  return std::all_of(start.begin(), start.end(),
                     [&](Picoseconds time) { return time == start.front(); });
}

ExchangeTimes nccl(const ExchangeRequest& request) {
  if (start_together(request.start) && nccl_is_a_burst(request.topology, request.settings.nccl)) {
    const ByteMatrix wire = nccl_wire_bytes(request);
    return burst({request.topology, wire, request.start, request.settings});
  }
  return from_plan(plan_nccl(request), request);
}

// Both levels by their bounds: what crosses begins no earlier than the lower and no later than the
// upper bound of what is gathered, and both kinds of bound grow with the start.
ExchangeTimes hierarchical(const ExchangeRequest& request) {
  if (request.settings.method != Method::flows) {
    const TwoLevels levels = two_levels(Domains(request.topology), request.bytes);
    PortBounder bounder(request.topology);
    const PortBound inside = bounder.bound(levels.inside, request.start);
    std::vector<Picoseconds> early = inside.rank_lower;
    std::vector<Picoseconds> late = inside.rank_upper;
    bool known = inside.exact;
    for (std::size_t rank = 0; rank < early.size(); ++rank) {
      early[rank] = std::max(early[rank], request.start[rank]);
      late[rank] = std::max(late[rank], request.start[rank]);
      known = known && late[rank] - early[rank] <= Picoseconds(2);
    }
    bounder.starts_are(known ? PortBounder::Starts::known : PortBounder::Starts::at_least);
    PortBound across = bounder.bound(levels.across, early);
    const PortBound latest = bounder.bound(levels.across, late);
    across.lower = std::max(across.lower, inside.lower);
    across.upper = std::max({latest.upper, inside.upper, across.lower});
    for (std::size_t rank = 0; rank < early.size(); ++rank) {
      across.rank_lower[rank] = std::max(across.rank_lower[rank], inside.rank_lower[rank]);
      across.rank_upper[rank] =
          std::max({latest.rank_upper[rank], inside.rank_upper[rank], across.rank_lower[rank]});
    }
    across.exact = known && across.upper - across.lower <= Picoseconds(4);
    if (accepts(request.settings, across)) return from_bound(std::move(across));
  }
  return from_plan(plan_hierarchical(request), request);
}

ExchangeTimes by_schedule(const ExchangeRequest& request, Schedule schedule) {
  switch (schedule) {
    case Schedule::burst:
      return burst(request);
    case Schedule::pairwise:
      return from_plan(plan_pairwise(request), request);
    case Schedule::nccl:
      return nccl(request);
    case Schedule::hierarchical:
      return hierarchical(request);
    case Schedule::pxn:
      return from_plan(plan_pxn(request), request);
    case Schedule::deepep:
      return from_plan(plan_deepep(request), request);
  }
  return burst(request);
}

}  // namespace

const char* name_of(Schedule schedule) {
  for (const auto& [value, name] : schedule_names) {
    if (value == schedule) return name;
  }
  return "burst";
}

Schedule parse_schedule(const std::string& name) { return parse(schedule_names, name, "schedule"); }

const std::vector<Schedule>& all_schedules() {
  static const std::vector<Schedule> all = [] {
    std::vector<Schedule> list;
    for (const auto& entry : schedule_names) list.push_back(entry.first);
    return list;
  }();
  return all;
}

const char* name_of(Method method) {
  for (const auto& [value, name] : method_names) {
    if (value == method) return name;
  }
  return "auto";
}

Method parse_method(const std::string& name) { return parse(method_names, name, "network"); }

Picoseconds flow_tolerance(int ranks) {
  return Picoseconds(ranks >= 512 ? 20'000 : ranks >= 256 ? 1'000 : 1);
}

ExchangeTimes simulate_exchange(const Topology& topology, const ByteMatrix& bytes,
                                std::span<const Picoseconds> start, Schedule schedule,
                                const ExchangeSettings& settings) {
  const std::vector<Picoseconds> zeros(start.empty() ? at(topology.ranks()) : 0);
  const ExchangeRequest request{topology, bytes, start.empty() ? zeros : start, settings};
  check(topology);
  check_request(request);
  ExchangeTimes times = by_schedule(request, schedule);
  for (std::size_t rank = 0; rank < times.rank_finish.size(); ++rank) {
    // No byte of anyone's, be it forwarded: bounds and plans leave such a rank at 0.
    Picoseconds& finish = times.rank_finish[rank];
    if (finish == Picoseconds(0)) finish = request.start[rank];
  }
  return times;
}

double distinct_share(int experts, int domains, int choices) {
  assert(choices >= 1 && choices <= experts && domains >= 1 && experts % domains == 0);
  return profile::distinct_groups({experts, choices, 0}, domains) / choices;
}

}  // namespace moesim::network
