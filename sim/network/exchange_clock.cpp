#include "sim/network/exchange_clock.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <functional>
#include <numeric>

#include "sim/base/error.hpp"

namespace moesim::network {
namespace {

const Link& link_of(const Topology& topology, int link) {
  return topology.links[static_cast<std::size_t>(link)];
}

// Whether each switch of a tier passes on all that the ports below it can send; the ports of ranks
// with one switch are summed up.
bool is_full(const Topology& topology, const Tier& tier, const std::vector<int>& ports,
             const std::vector<int>& trunks) {
  std::vector<double> below(trunks.size());
  for (std::size_t rank = 0; rank < ports.size(); ++rank) {
    below[static_cast<std::size_t>(tier.switch_of[rank])] +=
        link_of(topology, ports[rank]).bandwidth.bytes_per_second;
  }
  for (std::size_t at = 0; at < trunks.size(); ++at) {
    const double above = link_of(topology, trunks[at]).bandwidth.bytes_per_second;
    if (above < below[at] * (1 - 1e-9)) return false;
  }
  return true;
}

// The same as a cast for 0 <= value < 2^52, but a vector instruction everywhere: the value becomes
// the mantissa of 2^52 + value.
double as_double(std::int64_t value) {
  constexpr double offset = 4503599627370496.0;  // 2^52
  return std::bit_cast<double>(std::bit_cast<std::int64_t>(offset) | value) - offset;
}

void refuse(const char* plane, const char* reason) {
  throw Error(fmt::format(
      "the fast network needs ports that do not block each other, but {} {}: use --network flows",
      plane, reason));
}

}  // namespace

PortClock::PlanePorts PortClock::ports_of(const Topology& topology, const Plane& plane,
                                          const char* name) {
  PlanePorts ports;
  const auto read = [&](const std::vector<int>& links, std::vector<Port>& into) {
    std::vector<bool> used(topology.links.size());
    for (const int link : links) {
      if (used[static_cast<std::size_t>(link)]) refuse(name, "are shared by several ranks");
      used[static_cast<std::size_t>(link)] = true;
      const Link& port = link_of(topology, link);
      into.push_back({1e12 / port.bandwidth.bytes_per_second,
                      static_cast<double>(port.latency.count)});
    }
  };
  read(plane.port_up, ports.up);
  read(plane.port_down, ports.down);
  for (const Tier& tier : plane.tiers) {
    if (!is_full(topology, tier, plane.port_up, tier.up) ||
        !is_full(topology, tier, plane.port_down, tier.down)) {
      refuse(name, "meet in switches with less bandwidth above than below");
    }
  }
  return ports;
}

PortClock::PortClock(const Topology& topology) : domain_of_(topology.domain_of) {
  check(topology);
  inner_ = ports_of(topology, topology.inner, "those inside a domain");
  outer_ = ports_of(topology, topology.outer, "those between domains");
}

void PortClock::plan(std::span<const int> members, std::span<const Picoseconds> arrival) {
  runs_.clear();
  for (std::size_t member = 0; member < members.size(); ++member) {
    const int domain = domain_of_[static_cast<std::size_t>(members[member])];
    if (runs_.empty() || runs_.back().domain != domain) runs_.push_back({member, member, domain});
    runs_.back().end = member + 1;
  }
  latest_first_.resize(members.size());
  std::iota(latest_first_.begin(), latest_first_.end(), std::size_t{0});
  if (std::is_sorted(arrival.begin(), arrival.end(), std::greater<>())) return;
  std::sort(latest_first_.begin(), latest_first_.end(), [&](std::size_t a, std::size_t b) {
    return arrival[a] != arrival[b] ? arrival[a] > arrival[b] : a < b;
  });
}

void PortClock::Inbound::reset(const std::vector<Port>& down, std::span<const int> members) {
  bytes.assign(members.size(), 0);
  done.assign(members.size(), 0);
  per_byte.resize(members.size());
  latency.resize(members.size());
  for (std::size_t member = 0; member < members.size(); ++member) {
    const Port port = down.empty() ? Port{} : down[static_cast<std::size_t>(members[member])];
    per_byte[member] = port.ps_per_byte;
    latency[member] = port.latency;
  }
}

// The heart of the fast network: no branches, no calls, so that it runs on vectors.
std::int64_t PortClock::Inbound::enter(double time, const std::int64_t* row, std::size_t begin,
                                       std::size_t last) {
  std::int64_t sum = 0;
  std::int64_t* total = bytes.data();
  const double* late = latency.data();
  const double* cost = per_byte.data();
  double* end = done.data();
  for (std::size_t member = begin; member < last; ++member) {
    sum += row[member];
    total[member] += row[member];
    const double amount = as_double(total[member]);
    const double candidate = time + late[member] + amount * cost[member];
    const double later = end[member] < candidate ? candidate : end[member];
    end[member] = amount > 0 ? later : end[member];
  }
  return sum;
}

void PortClock::finish(std::span<const int> members, const ByteMatrix& bytes,
                       std::span<const Picoseconds> arrival, std::span<Picoseconds> finish) {
  assert(bytes.ranks() == static_cast<int>(members.size()));
  plan(members, arrival);
  into_inner_.reset(inner_.down, members);
  into_outer_.reset(outer_.down, members);
  sent_.assign(members.size(), 0);
  const Picoseconds first = arrival[latest_first_.back()];
  for (const std::size_t source : latest_first_) {
    const auto rank = static_cast<std::size_t>(members[source]);
    const double time = static_cast<double>((arrival[source] - first).count);
    const Port inner = inner_.up.empty() ? Port{} : inner_.up[rank];
    const Port outer = outer_.up.empty() ? Port{} : outer_.up[rank];
    const std::int64_t* row = bytes.row(static_cast<int>(source));
    std::int64_t inside = 0;
    std::int64_t outside = 0;
    std::size_t begin = 0;  // of what lies in other domains, in stretches as long as may be
    for (const Run& run : runs_) {
      if (run.domain != domain_of_[rank]) continue;
      outside += into_outer_.enter(time + outer.latency, row, begin, run.begin);
      // Not to itself: that is a copy.
      const std::size_t middle = std::clamp(source, run.begin, run.end);
      inside += into_inner_.enter(time + inner.latency, row, run.begin, middle);
      inside += into_inner_.enter(time + inner.latency, row, middle + (middle == source), run.end);
      begin = run.end;
    }
    outside += into_outer_.enter(time + outer.latency, row, begin, members.size());
    double end = time;
    if (inside > 0) {
      end = std::max(end, time + inner.latency + into_inner_.latency[source] +
                              static_cast<double>(inside) * inner.ps_per_byte);
    }
    if (outside > 0) {
      end = std::max(end, time + outer.latency + into_outer_.latency[source] +
                              static_cast<double>(outside) * outer.ps_per_byte);
    }
    sent_[source] = end;
  }
  for (std::size_t member = 0; member < members.size(); ++member) {
    const double end =
        std::max({sent_[member], into_inner_.done[member], into_outer_.done[member]});
    finish[member] = first + Picoseconds(std::llround(end));
  }
}

}  // namespace moesim::network
