#include "sim/network/exchange_clock.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
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
      into.push_back(
          {1e12 / port.bandwidth.bytes_per_second, static_cast<double>(port.latency.count)});
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
  domain_of_member_.clear();
  for (std::size_t member = 0; member < members.size(); ++member) {
    const int domain = domain_of_[static_cast<std::size_t>(members[member])];
    domain_of_member_.push_back(domain);
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
  messages.assign(members.size(), 0);
  through.resize(members.size());
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
  double* count = messages.data();
  for (std::size_t member = begin; member < last; ++member) {
    sum += row[member];
    total[member] += row[member];
    count[member] += as_double(row[member]) > 0 ? 1.0 : 0.0;
    const double amount = as_double(total[member]);
    const double candidate = time + late[member] + amount * cost[member];
    const double later = end[member] < candidate ? candidate : end[member];
    end[member] = amount > 0 ? later : end[member];
  }
  return sum;
}

double PortClock::Inbound::settle(const Outbound& from, const std::int64_t* row, std::size_t begin,
                                  std::size_t last, double* end) {
  const double* late = latency.data();
  const double* cost = per_byte.data();
  const double* full = done.data();
  const double* count = messages.data();
  const double own_cost = from.messages * from.per_byte;
  double* when = through.data();
  for (std::size_t member = begin; member < last; ++member) {
    const double amount = as_double(row[member]);
    const double start = from.start + late[member];
    const double shared = start + amount * (count[member] * cost[member]);
    const double received = shared < full[member] ? shared : full[member];
    const double spread = start + amount * own_cost;
    const double sent = spread < from.end ? spread : from.end;
    const double later = received < sent ? sent : received;
    const double done_at = amount > 0 ? later : 0.0;
    when[member] = done_at;
    end[member] = end[member] < done_at ? done_at : end[member];
  }
  // Four chains, as the latest of doubles is not found on vectors.
  std::array<double, 4> latest{};
  for (std::size_t member = begin; member < last; ++member) {
    double& chain = latest[member % 4];
    chain = chain < when[member] ? when[member] : chain;
  }
  return std::max({latest[0], latest[1], latest[2], latest[3]});
}

// Calls stretch(begin, end, inside) for stretches of the other members as long as may be.
template <class Stretch>
void PortClock::visit(std::size_t source, std::size_t members, Stretch stretch) const {
  std::size_t begin = 0;
  for (const Run& run : runs_) {
    if (run.domain != domain_of_member_[source]) continue;
    if (begin < run.begin) stretch(begin, run.begin, false);
    // Not to itself: that is a copy.
    const std::size_t middle = std::clamp(source, run.begin, run.end);
    const std::size_t after = middle + (middle == source && middle < run.end ? 1 : 0);
    if (run.begin < middle) stretch(run.begin, middle, true);
    if (after < run.end) stretch(after, run.end, true);
    begin = run.end;
  }
  if (begin < members) stretch(begin, members, false);
}

// Loads the ports with what one member sends.
void PortClock::send(std::size_t source, const std::int64_t* row, std::size_t members,
                     double time) {
  Outbound& inner = from_inner_[source];
  Outbound& outer = from_outer_[source];
  std::int64_t inside = 0;
  std::int64_t outside = 0;
  visit(source, members, [&](std::size_t begin, std::size_t end, bool same_domain) {
    if (same_domain) {
      inside += into_inner_.enter(inner.start, row, begin, end);
    } else {
      outside += into_outer_.enter(outer.start, row, begin, end);
    }
    std::uint64_t count = 0;  // of those above 0: the sign of the negative
    for (std::size_t member = begin; member < end; ++member) {
      count += static_cast<std::uint64_t>(-row[member]) >> 63;
    }
    (same_domain ? inner : outer).messages += static_cast<double>(count);
  });
  end_[source] = time;
  const auto port_end = [&](Outbound& port, double latency, std::int64_t bytes) {
    port.end = port.start + latency + static_cast<double>(bytes) * port.per_byte;
    if (bytes > 0) end_[source] = std::max(end_[source], port.end);
  };
  port_end(inner, into_inner_.latency[source], inside);
  port_end(outer, into_outer_.latency[source], outside);
}

void PortClock::settle(std::size_t source, const std::int64_t* row, std::size_t members) {
  visit(source, members, [&](std::size_t begin, std::size_t end, bool same_domain) {
    const double last = same_domain
                            ? into_inner_.settle(from_inner_[source], row, begin, end, end_.data())
                            : into_outer_.settle(from_outer_[source], row, begin, end, end_.data());
    end_[source] = std::max(end_[source], last);
  });
}

void PortClock::finish(std::span<const int> members, const ByteMatrix& bytes,
                       std::span<const Picoseconds> arrival, std::span<Picoseconds> finish) {
  assert(bytes.ranks() == static_cast<int>(members.size()));
  const std::size_t count = members.size();
  plan(members, arrival);
  into_inner_.reset(inner_.down, members);
  into_outer_.reset(outer_.down, members);
  from_inner_.resize(count);
  from_outer_.resize(count);
  end_.resize(count);
  const Picoseconds first = arrival[latest_first_.back()];
  for (const std::size_t source : latest_first_) {
    const auto rank = static_cast<std::size_t>(members[source]);
    const auto time = static_cast<double>((arrival[source] - first).count);
    const Port inner = inner_.up.empty() ? Port{} : inner_.up[rank];
    const Port outer = outer_.up.empty() ? Port{} : outer_.up[rank];
    from_inner_[source] = {0, time + inner.latency, inner.ps_per_byte, 0};
    from_outer_[source] = {0, time + outer.latency, outer.ps_per_byte, 0};
    send(source, bytes.row(static_cast<int>(source)), count, time);
  }
  for (std::size_t source = 0; source < count; ++source) {
    settle(source, bytes.row(static_cast<int>(source)), count);
  }
  for (std::size_t member = 0; member < count; ++member) {
    finish[member] = first + Picoseconds(std::llround(end_[member]));
  }
}

}  // namespace moesim::network
