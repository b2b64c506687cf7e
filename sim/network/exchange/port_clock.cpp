#include "sim/network/exchange/port_clock.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "sim/base/no_answer.hpp"

namespace moesim::network {
namespace {

const Link& link_of(const Topology& topology, int link) {
  return topology.links[static_cast<std::size_t>(link)];
}

// The entry of a table that may be short: -1 past its end.
int entry(const std::vector<int>& table, std::size_t row) {
  return row < table.size() ? table[row] : -1;
}

const ClockKernels& kernels() {
  static const ClockKernels& chosen = clock_kernels();
  return chosen;
}

void refuse(const char* plane, const char* reason) {
  throw NoAnswer(fmt::format(
      "the fast network needs ports that do not block each other, but {} {}: use --network flows",
      plane, reason));
}

}  // namespace

PortClock::PlanePorts PortClock::ports_of(const Topology& topology, const Plane& plane,
                                          const char* name) {
  PlanePorts ports;
  const auto read = [&](const std::vector<int>& links, std::vector<Port>& into) {
    std::vector<bool> used(topology.links.size());
    std::optional<Picoseconds> latency;
    into.resize(topology.domain_of.size());
    for (std::size_t rank = 0; rank < links.size(); ++rank) {
      if (links[rank] < 0) continue;
      const auto link = static_cast<std::size_t>(links[rank]);
      if (used[link]) refuse(name, "are shared by several ranks");
      used[link] = true;
      const Link& port = topology.links[link];
      into[rank] = {1e12 / port.bandwidth.bytes_per_second,
                    static_cast<double>(port.latency.count)};
      ports.even = ports.even && latency.value_or(port.latency) == port.latency;
      latency = port.latency;
    }
  };
  read(plane.port_up, ports.up);
  read(plane.port_down, ports.down);
  const std::vector<bool> nonbinding = nonbinding_uplinks(topology);
  for (const Tier& tier : plane.tiers) {
    if (all_nonbinding(nonbinding, tier)) continue;
    refuse(name, "meet in switches with less bandwidth above than below");
  }
  read_passages(topology, plane, ports);
  return ports;
}

void PortClock::read_passages(const Topology& topology, const Plane& plane, PlanePorts& ports) {
  const std::size_t ranks = topology.domain_of.size();
  ports.switches_of.resize(ranks);
  bool takes_time = false;
  for (const Tier& tier : plane.tiers) {
    Passage passage;
    const auto read = [&](const std::vector<int>& links, std::vector<double>& into) {
      for (const int link : links) {
        const Picoseconds latency = link < 0 ? Picoseconds(0) : link_of(topology, link).latency;
        takes_time = takes_time || latency > Picoseconds(0);
        into.push_back(static_cast<double>(latency.count));
      }
    };
    read(tier.up, passage.up);
    read(tier.down, passage.down);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      passage.switch_of.push_back(entry(tier.switch_of, rank));
    }
    ports.passages.push_back(std::move(passage));
  }
  if (!takes_time) return ports.passages.clear();
  ports.even = false;
  std::map<std::vector<int>, int> known;
  std::vector<int> switches;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    switches.clear();
    for (const Passage& passage : ports.passages) switches.push_back(passage.switch_of[rank]);
    ports.switches_of[rank] =
        known.try_emplace(switches, static_cast<int>(known.size())).first->second;
  }
  ports.switch_lists = static_cast<int>(known.size());
}

double PortClock::PlanePorts::passing(std::size_t source, std::size_t destination) const {
  double sum = 0;
  for (const Passage& passage : passages) {
    const int from = passage.switch_of[source];
    const int to = passage.switch_of[destination];
    if (from == to || from < 0 || to < 0) break;  // met, or no way to go
    sum += passage.up[static_cast<std::size_t>(from)] + passage.down[static_cast<std::size_t>(to)];
  }
  return sum;
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

void PortClock::Inbound::reset(const PlanePorts& ports, std::span<const int> members) {
  bytes.assign(members.size(), 0);
  messages.assign(members.size(), 0);
  through.resize(members.size());
  done.assign(members.size(), 0);
  even = ports.even;
  if (!even) earliest.assign(members.size(), std::numeric_limits<double>::infinity());
  // The ways of one group are the same at every exchange.
  if (std::equal(members.begin(), members.end(), seen.begin(), seen.end())) return;
  seen.assign(members.begin(), members.end());
  per_byte.resize(members.size());
  row_begin.resize(members.size());
  shortest.resize(members.size());
  std::vector<double> shortest_of_row;
  latency.clear();
  row_of_switches.assign(static_cast<std::size_t>(ports.switch_lists), -1);
  for (std::size_t member = 0; member < members.size(); ++member) {
    const auto rank = static_cast<std::size_t>(members[member]);
    per_byte[member] = ports.down[rank].ps_per_byte;
    int& row = row_of_switches[static_cast<std::size_t>(ports.switches_of[rank])];
    if (row < 0) {
      row = static_cast<int>(latency.size() / members.size());
      for (const int other : members) {
        const auto receiver = static_cast<std::size_t>(other);
        latency.push_back(ports.down[receiver].latency + ports.passing(rank, receiver));
      }
      const auto begin = latency.end() - static_cast<std::ptrdiff_t>(members.size());
      shortest_of_row.push_back(*std::min_element(begin, latency.end()));
    }
    row_begin[member] = static_cast<std::size_t>(row) * members.size();
    shortest[member] = shortest_of_row[static_cast<std::size_t>(row)];
  }
}

void PortClock::Inbound::enter(Outbound& from, std::size_t source, const std::int64_t* row,
                               std::size_t begin, std::size_t last) {
  const double* way = latency.data() + row_begin[source];
  const Columns columns{row + begin,
                        bytes.data() + begin,
                        messages.data() + begin,
                        way + begin,
                        per_byte.data() + begin,
                        earliest.data() + (even ? 0 : begin),
                        done.data() + begin,
                        nullptr,
                        nullptr,
                        last - begin};
  const Sent sent =
      even ? kernels().enter(columns, from.start) : kernels().enter_uneven(columns, from.start);
  // Found after a few members where most send to each other.
  for (std::size_t at = begin; at < last && from.latency > shortest[source]; ++at) {
    if (row[at] > 0) from.latency = std::min(from.latency, way[at]);
  }
  from.bytes += sent.bytes;
  from.messages += static_cast<double>(sent.messages);
}

double PortClock::Inbound::settle(const Outbound& from, std::size_t source, const std::int64_t* row,
                                  std::size_t begin, std::size_t last, double* end) {
  const Columns columns{row + begin,
                        bytes.data() + begin,
                        messages.data() + begin,
                        latency.data() + row_begin[source] + begin,
                        per_byte.data() + begin,
                        nullptr,
                        done.data() + begin,
                        through.data() + begin,
                        end + begin,
                        last - begin};
  kernels().settle(columns, from.start, from.end, from.messages * from.per_byte);
  // Four chains, as compilers do not look for the latest of doubles on vectors.
  constexpr std::size_t chains = 4;
  std::array<double, chains> latest{};
  const double* when = columns.through;
  std::size_t at = 0;
  for (; at + chains <= columns.size; at += chains) {
    for (std::size_t chain = 0; chain < chains; ++chain) {
      latest[chain] = std::max(latest[chain], when[at + chain]);
    }
  }
  for (; at < columns.size; ++at) latest[0] = std::max(latest[0], when[at]);
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
  visit(source, members, [&](std::size_t begin, std::size_t end, bool same_domain) {
    if (same_domain) {
      into_inner_.enter(inner, source, row, begin, end);
    } else {
      into_outer_.enter(outer, source, row, begin, end);
    }
  });
  end_[source] = time;
  for (Outbound* port : {&inner, &outer}) {
    if (port->bytes == 0) continue;
    port->end = port->start + port->latency + static_cast<double>(port->bytes) * port->per_byte;
    end_[source] = std::max(end_[source], port->end);
  }
}

void PortClock::settle(std::size_t source, const std::int64_t* row, std::size_t members) {
  visit(source, members, [&](std::size_t begin, std::size_t end, bool same_domain) {
    const double last =
        same_domain ? into_inner_.settle(from_inner_[source], source, row, begin, end, end_.data())
                    : into_outer_.settle(from_outer_[source], source, row, begin, end, end_.data());
    end_[source] = std::max(end_[source], last);
  });
}

std::vector<std::int64_t> PortClock::equivalence_key(std::span<const int> members) const {
  std::vector<std::int64_t> numbers;
  // Each member by the number of its domain, or switch, in the order of their first members.
  const auto pattern = [&](const std::vector<int>& number_of) {
    std::map<int, std::int64_t> first;
    for (const int rank : members) {
      const auto next = static_cast<std::int64_t>(first.size());
      numbers.push_back(
          first.try_emplace(number_of[static_cast<std::size_t>(rank)], next).first->second);
    }
  };
  const auto amount = [&](double value) { numbers.push_back(std::bit_cast<std::int64_t>(value)); };
  pattern(domain_of_);
  for (const PlanePorts* plane : {&inner_, &outer_}) {
    for (const int rank : members) {
      for (const std::vector<Port>* ports : {&plane->up, &plane->down}) {
        amount((*ports)[static_cast<std::size_t>(rank)].ps_per_byte);
        amount((*ports)[static_cast<std::size_t>(rank)].latency);
      }
    }
    for (const Passage& passage : plane->passages) {
      pattern(passage.switch_of);
      for (const int rank : members) {
        const int number = passage.switch_of[static_cast<std::size_t>(rank)];
        amount(number < 0 ? -1 : passage.up[static_cast<std::size_t>(number)]);
        amount(number < 0 ? -1 : passage.down[static_cast<std::size_t>(number)]);
      }
    }
  }
  return numbers;
}

void PortClock::finish(std::span<const int> members, const ByteMatrix& bytes,
                       std::span<const Picoseconds> arrival, std::span<Picoseconds> finish) {
  assert(bytes.ranks() == static_cast<int>(members.size()));
  const std::size_t count = members.size();
  plan(members, arrival);
  into_inner_.reset(inner_, members);
  into_outer_.reset(outer_, members);
  from_inner_.resize(count);
  from_outer_.resize(count);
  end_.resize(count);
  const Picoseconds first = arrival[latest_first_.back()];
  for (const std::size_t source : latest_first_) {
    const auto rank = static_cast<std::size_t>(members[source]);
    const auto time = static_cast<double>((arrival[source] - first).count);
    constexpr double none = std::numeric_limits<double>::infinity();
    const Port& inner = inner_.up[rank];
    const Port& outer = outer_.up[rank];
    from_inner_[source] = {0, 0, time + inner.latency, none, inner.ps_per_byte, 0};
    from_outer_[source] = {0, 0, time + outer.latency, none, outer.ps_per_byte, 0};
    send(source, bytes.row(static_cast<int>(source)), count, time);
  }
  for (std::size_t source = 0; source < count; ++source) {
    settle(source, bytes.row(static_cast<int>(source)), count);
  }
  for (std::size_t member = 0; member < count; ++member) {
    finish[member] = first + Picoseconds::rounded(end_[member]);
  }
}

}  // namespace moesim::network
