#include "sim/network/ports/port_bounder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>

#include "sim/base/error.hpp"
#include "sim/base/numbers.hpp"

namespace moesim::network {
namespace {

constexpr double ps_per_second = 1e12;
constexpr double never = std::numeric_limits<double>::infinity();
// What may lie between two bounds that are one but for the rounding of doubles and picoseconds.
constexpr double rounding_ps = 2;
constexpr double rounding_share = 1e-9;
constexpr int fast_bits = 52;  // of amounts that the fast kernels take
constexpr std::int64_t most_bytes = std::int64_t{1}
                                    << 53;  // doubles hold every whole number up to it

double bytes_per_ps(const Link& link) { return link.bandwidth.bytes_per_second / ps_per_second; }

// The end of simulated time, as in Transfers.
constexpr double latest_ps = 9.2e18;

Picoseconds rounded(double ps) {
  if (!(ps < latest_ps)) {
    throw Error("network: a transfer ends later than simulated time reaches (106 days)");
  }
  return Picoseconds(std::llround(ps));
}

// Names a cell that is out of range.
void check_amounts(const ByteMatrix& bytes) {
  for (int source = 0; source < bytes.ranks(); ++source) {
    for (int destination = 0; destination < bytes.ranks(); ++destination) {
      const std::int64_t amount = bytes.at(source, destination);
      if (amount >= 0 && amount <= most_bytes) continue;
      throw UsageError(fmt::format("byte matrix, row {}, column {}: {} bytes: expected 0 to 2^53",
                                   source, destination, amount));
    }
  }
}

}  // namespace

void PortBounder::Ports::resize(std::size_t ranks) {
  ranks += padding;
  for (auto* whole : {&bytes, &flows}) whole->assign(ranks, 0);
  for (auto* real : {&largest, &first, &last, &ends, &per_byte, &alone, &mean, &left, &own})
    real->assign(ranks, 0);
}

void PortBounder::Ports::clear() {
  for (auto* whole : {&bytes, &flows}) std::fill(whole->begin(), whole->end(), 0);
  std::fill(largest.begin(), largest.end(), 0.0);
  std::fill(first.begin(), first.end(), never);
  std::fill(last.begin(), last.end(), 0.0);
  std::fill(ends.begin(), ends.end(), 0.0);
}

PortBounder::PortBounder(const Topology& topology)
    : topology_(topology),
      kernels_(&bound_kernels()),
      no_link_(static_cast<int>(topology.links.size())),
      refiner_(topology) {
  check(topology);
  loads_.resize(topology.links.size() + 1);
  nonbinding_ = nonbinding_uplinks(topology);
  rank_lower_.resize(index_of(topology.ranks()) + padding);
  rank_upper_.resize(index_of(topology.ranks()) + padding);
  plan_plane(topology.inner, inner_);
  plan_plane(topology.outer, outer_);
  plan_runs();
}

void PortBounder::plan_plane(const Plane& plane, PlanePorts& ports) {
  const auto plan = [&](const std::vector<int>& links, Ports& side) {
    side.link = links;
    side.resize(links.size());
    side.rate.assign(links.size() + padding, 1);
    for (std::size_t rank = 0; rank < links.size(); ++rank) {
      if (!is_link(links[rank])) {
        side.link[rank] = no_link_;
      } else {
        side.rate[rank] = bytes_per_ps(topology_.links[index_of(links[rank])]);
      }
    }
  };
  plan(plane.port_up, ports.up);
  plan(plane.port_down, ports.down);
  for (const Tier& tier : plane.tiers) {
    for (const std::vector<int>* side : {&tier.up, &tier.down}) {
      std::copy_if(side->begin(), side->end(), std::back_inserter(ports.above),
                   [&](int link) { return is_link(link) && !nonbinding_[index_of(link)]; });
    }
  }
}

// The links of tiers between two ranks, into `above`; notes the latency of the way.
void PortBounder::plan_way(int source, int destination, std::vector<int>& above) {
  const Route route = topology_.route(source, destination);
  PlanePorts& plane = topology_.same_domain(source, destination) ? inner_ : outer_;
  const auto latency = static_cast<double>(topology_.latency(route).count);
  if (plane.latency < 0) plane.latency = latency;
  if (plane.latency != latency) plane.same_latency = false;
  latencies_[index_of(source) * latency_stride_ + index_of(destination)] = latency;
  above.clear();
  std::copy_if(route.begin() + 1, route.end() - 1, std::back_inserter(above),
               [&](int link) { return !nonbinding_[index_of(link)]; });
}

void PortBounder::plan_runs() {
  const int ranks = topology_.ranks();
  latency_stride_ = index_of(ranks) + padding;
  latencies_.assign(index_of(ranks) * latency_stride_, 0);
  std::vector<int> above;
  for (int source = 0; source < ranks; ++source) {
    first_run_.push_back(runs_.size());
    bool open = false;
    for (int destination = 0; destination < ranks; ++destination) {
      if (destination == source) {
        open = false;
        continue;
      }
      plan_way(source, destination, above);
      const bool inner = topology_.same_domain(source, destination);
      if (open && runs_.back().inner == inner &&
          runs_.back().above == static_cast<int>(above.size()) &&
          std::equal(above.begin(), above.end(), above_.data() + runs_.back().first_above)) {
        ++runs_.back().end;
        continue;
      }
      runs_.push_back({destination, destination + 1, inner, static_cast<int>(above_.size()),
                       static_cast<int>(above.size())});
      above_.insert(above_.end(), above.begin(), above.end());
      open = true;
    }
  }
  first_run_.push_back(runs_.size());
  const bool one_plane = inner_.latency < 0 || outer_.latency < 0;
  const PlanePorts& used = inner_.latency < 0 ? outer_ : inner_;
  if (ranks > 1 && one_plane && used.same_latency) {
    // One row of latencies serves all sources.
    latencies_.assign(latency_stride_, used.latency);
    latency_stride_ = 0;
  }
}

// Whether all ways of each plane take the same time, and what starts together enters together.
void PortBounder::plan_entries(std::span<const Picoseconds> start) {
  const bool at_once = std::all_of(start.begin(), start.end(),
                                   [&](Picoseconds time) { return time == start.front(); });
  for (PlanePorts* plane : {&inner_, &outer_}) {
    plane->up.clear();
    plane->down.clear();
    plane->together = at_once && plane->same_latency;
  }
  latest_first_.resize(index_of(topology_.ranks()));
  std::iota(latest_first_.begin(), latest_first_.end(), 0);
  if (at_once) return;
  std::sort(latest_first_.begin(), latest_first_.end(),
            [&](int a, int b) { return start[index_of(a)] > start[index_of(b)]; });
}

// Notes when messages enter the destinations' ports and what these are busy with from then on.
PortBounder::Entry PortBounder::add_entries(const std::int64_t* row, int source, const Run& run,
                                            double start) {
  const double* latency = latencies_from(source);
  Ports& down = run.inner ? inner_.down : outer_.down;
  Entry entry{never, 0};
  for (int destination = run.begin; destination < run.end; ++destination) {
    const std::size_t column = index_of(destination);
    if (row[column] == 0) continue;
    const double enters = start + latency[column];
    entry = {std::min(entry.first, enters), std::max(entry.last, enters)};
    down.first[column] = std::min(down.first[column], enters);
    down.last[column] = std::max(down.last[column], enters);
    // So far only flows of sources that start no earlier have been counted.
    down.ends[column] =
        std::max(down.ends[column],
                 down.first[column] + static_cast<double>(down.bytes[column]) / down.rate[column]);
  }
  return entry;
}

// Adds one source's messages of one run to the loads of its links.
void PortBounder::add_run(const std::int64_t* row, int source, const Run& run, double start) {
  PlanePorts& plane = run.inner ? inner_ : outer_;
  const RowSum sum = (any_amount_ ? kernels_->add_any_row : kernels_->add_row)(
      row, run.begin, run.end, limit_,
      {plane.down.bytes.data(), plane.down.flows.data(), plane.down.largest.data()});
  bits_ |= sum.bits;
  if (sum.flows == 0) return;
  const double together = start + plane.latency;
  const Entry entry =
      plane.together ? Entry{together, together} : add_entries(row, source, run, start);
  const auto add = [&](std::int64_t& bytes, std::int64_t& flows, double& largest, double& first,
                       double& last) {
    bytes += sum.bytes;
    flows += sum.flows;
    largest = std::max(largest, sum.largest);
    first = std::min(first, entry.first);
    last = std::max(last, entry.last);
  };
  Ports& up = plane.up;
  const std::size_t line = index_of(source);
  add(up.bytes[line], up.flows[line], up.largest[line], up.first[line], up.last[line]);
  for (int step = 0; step < run.above; ++step) {
    const std::size_t link = index_of(above_[index_of(run.first_above + step)]);
    LinkLoad& load = loads_[link];
    add(load.bytes, load.flows, load.largest, load.first, load.last);
    load.ends = std::max(load.ends, load.first + static_cast<double>(load.bytes) /
                                                     bytes_per_ps(topology_.links[link]));
  }
}

void PortBounder::add_loads(const ByteMatrix& bytes, std::span<const Picoseconds> start) {
  bits_ = 0;
  LinkLoad empty;
  empty.first = never;
  std::fill(loads_.begin(), loads_.end(), empty);
  plan_entries(start);
  for (const int source : latest_first_) {
    const double begins = start.empty() ? 0 : static_cast<double>(start[index_of(source)].count);
    for (std::size_t run = first_run_[index_of(source)]; run < first_run_[index_of(source) + 1];
         ++run) {
      add_run(bytes.row(source), source, runs_[run], begins);
    }
  }
  add_ports();
}

// Ranks may share a port: what its ranks carry adds up on the link.
void PortBounder::add_ports() {
  for (PlanePorts* plane : {&inner_, &outer_}) {
    double enters = never;
    for (std::size_t rank = 0; rank < plane->up.link.size(); ++rank) {
      enters = std::min(enters, plane->up.first[rank]);
    }
    for (Ports* side : {&plane->up, &plane->down}) {
      for (std::size_t rank = 0; rank < side->link.size(); ++rank) {
        if (side->flows[rank] == 0) continue;
        if (plane->together) side->first[rank] = side->last[rank] = enters;
        LinkLoad& load = loads_[index_of(side->link[rank])];
        load.bytes += side->bytes[rank];
        load.flows += side->flows[rank];
        load.largest = std::max(load.largest, side->largest[rank]);
        load.first = std::min(load.first, side->first[rank]);
        load.last = std::max(load.last, side->last[rank]);
        load.ends = std::max(load.ends, side->ends[rank]);
      }
    }
  }
}

// Turns counts into shares: k_L, T_L and what bounds a flow on L from below.
void PortBounder::settle_loads() {
  for (std::size_t link = 0; link < loads_.size(); ++link) {
    LinkLoad& load = loads_[link];
    if (load.flows == 0) continue;
    const double rate = bytes_per_ps(topology_.links[link]);
    load.per_byte = static_cast<double>(load.flows) / rate;
    load.alone = static_cast<double>(load.bytes) / rate;
    load.mean = static_cast<double>(load.bytes) / static_cast<double>(load.flows);
    load.slowest = load.per_byte;
  }
  // The slowest share on the ways of a link's flows: that of any port opposite and of any tier of
  // the plane is no less, and costs no pass over all pairs.
  for (const PlanePorts* plane : {&inner_, &outer_}) {
    const double up = slowest(plane->up.link);
    const double down = slowest(plane->down.link);
    const double above = slowest(plane->above);
    raise_slowest(plane->up.link, std::max(down, above));
    raise_slowest(plane->down.link, std::max(up, above));
    raise_slowest(plane->above, std::max({up, down, above}));
  }
  for (std::size_t link = 0; link < loads_.size(); ++link) {
    LinkLoad& load = loads_[link];
    if (load.flows == 0) continue;
    const double rate = bytes_per_ps(topology_.links[link]);
    load.left = rate;
    load.own = 0;
    if (load.first < load.last || starts_ == Starts::at_least) continue;
    load.own = 1 / (load.slowest * load.largest);
    load.left = std::max(0.0, rate - static_cast<double>(load.bytes) * load.own);
  }
  for (PlanePorts* plane : {&inner_, &outer_}) {
    for (Ports* side : {&plane->up, &plane->down}) settle_ports(*side);
  }
}

double PortBounder::slowest(const std::vector<int>& links) const {
  double share = 0;
  for (const int link : links) share = std::max(share, loads_[index_of(link)].per_byte);
  return share;
}

void PortBounder::raise_slowest(const std::vector<int>& links, double share) {
  for (const int link : links) {
    loads_[index_of(link)].slowest = std::max(loads_[index_of(link)].slowest, share);
  }
}

void PortBounder::settle_ports(Ports& ports) const {
  for (std::size_t rank = 0; rank < ports.link.size(); ++rank) {
    const LinkLoad& load = loads_[index_of(ports.link[rank])];
    ports.per_byte[rank] = load.per_byte;
    ports.alone[rank] = load.alone;
    ports.mean[rank] = load.mean;
    ports.left[rank] = load.left;
    ports.own[rank] = load.own;
  }
}

// Bounds the flows of one source in one run whose ways are its port and theirs. Returns the
// latest of them; the ends of the destinations go to rank_lower_ and rank_upper_.
Reach PortBounder::bound_run(const std::int64_t* row, int source, const Run& run, double start) {
  const PlanePorts& plane = run.inner ? inner_ : outer_;
  const Ports& up = plane.up;
  const Ports& down = plane.down;
  const std::size_t line = index_of(source);
  return (any_amount_ ? kernels_->bound_any_row : kernels_->bound_row)(
      row, run.begin, run.end, limit_, start,
      {up.per_byte[line], up.alone[line], up.mean[line], up.left[line], up.own[line]},
      {latencies_from(source), down.per_byte.data(), down.alone.data(), down.mean.data(),
       down.left.data(), down.own.data(), rank_upper_.data(), rank_lower_.data()});
}

// The same where tiers lie between.
Reach PortBounder::bound_run_above(const std::int64_t* row, int source, const Run& run,
                                   double start) {
  const double* latency = latencies_from(source);
  const PlanePorts& ports = run.inner ? inner_ : outer_;
  // The links of the way, the slowest first.
  const auto slower = [](const LinkLoad* a, const LinkLoad* b) {
    return a->per_byte > b->per_byte;
  };
  std::array<const LinkLoad*, Route::max_links> way{};
  std::size_t links = 0;
  const auto insert = [&](const LinkLoad* link) {
    std::size_t place = links++;
    for (; place > 0 && slower(link, way[place - 1]); --place) way[place] = way[place - 1];
    way[place] = link;
  };
  for (int step = 0; step < run.above; ++step) {
    insert(&loads_[index_of(above_[index_of(run.first_above + step)])]);
  }
  insert(&loads_[index_of(ports.up.link[index_of(source)])]);
  Reach latest;
  for (int destination = run.begin; destination < run.end; ++destination) {
    const std::size_t column = index_of(destination);
    if (row[column] == 0) continue;
    const auto amount = static_cast<double>(row[column]);
    const LinkLoad* last = &loads_[index_of(ports.down.link[column])];
    double rest = amount;
    double upper = start + latency[column];
    double rate = last->left + last->own * amount;
    const auto pass = [&](const LinkLoad& load) {
      upper += std::min(load.per_byte * rest, load.alone);
      rest -= std::min(rest, load.mean);
    };
    bool passed = false;
    for (std::size_t step = 0; step < links; ++step) {
      if (!passed && slower(last, way[step])) passed = (pass(*last), true);
      pass(*way[step]);
      rate = std::min(rate, way[step]->left + way[step]->own * amount);
    }
    if (!passed) pass(*last);
    const double lower = start + latency[column] + amount / rate;
    latest.upper = std::max(latest.upper, upper);
    latest.lower = std::max(latest.lower, lower);
    rank_upper_[column] = std::max(rank_upper_[column], upper);
    rank_lower_[column] = std::max(rank_lower_[column], lower);
  }
  return latest;
}

void PortBounder::bound_flows(const ByteMatrix& bytes, std::span<const Picoseconds> start) {
  std::fill(rank_lower_.begin(), rank_lower_.end(), 0.0);
  std::fill(rank_upper_.begin(), rank_upper_.end(), 0.0);
  for (int source = 0; source < bytes.ranks(); ++source) {
    const double begins = start.empty() ? 0 : static_cast<double>(start[index_of(source)].count);
    for (std::size_t index = first_run_[index_of(source)]; index < first_run_[index_of(source) + 1];
         ++index) {
      const Run& run = runs_[index];
      const Reach latest = run.above == 0 ? bound_run(bytes.row(source), source, run, begins)
                                          : bound_run_above(bytes.row(source), source, run, begins);
      rank_lower_[index_of(source)] = std::max(rank_lower_[index_of(source)], latest.lower);
      rank_upper_[index_of(source)] = std::max(rank_upper_[index_of(source)], latest.upper);
    }
  }
  // A port's last byte is its ranks': where they are one, that one's; else someone's, and each has
  // at least its own bytes.
  for (const PlanePorts* plane : {&inner_, &outer_}) {
    for (const Ports* side : {&plane->up, &plane->down}) {
      for (std::size_t rank = 0; rank < side->link.size(); ++rank) {
        if (side->flows[rank] == 0) continue;
        const LinkLoad& load = loads_[index_of(side->link[rank])];
        const double share =
            static_cast<double>(side->bytes[rank]) / static_cast<double>(load.bytes);
        rank_lower_[rank] =
            std::max({rank_lower_[rank], side->ends[rank], side->first[rank] + load.alone * share});
      }
    }
  }
}

void PortBounder::bound(const ByteMatrix& bytes, std::span<const Picoseconds> start,
                        PortBound& result) {
  const int ranks = topology_.ranks();
  if (bytes.ranks() != ranks || (!start.empty() && start.size() != index_of(ranks))) {
    throw UsageError(fmt::format(
        "byte matrix of {} ranks with {} start times on a topology of {}: expected the same number",
        bytes.ranks(), start.size(), ranks));
  }
  limit_ = ranks == 0 ? nullptr : bytes.row(ranks - 1) + ranks;
  any_amount_ = false;
  add_loads(bytes, start);
  if (bits_ >> fast_bits != 0) {
    check_amounts(bytes);
    any_amount_ = true;
    add_loads(bytes, start);
  }
  settle_loads();
  bound_flows(bytes, start);
  double lower = 0;
  double upper = 0;
  for (const LinkLoad& load : loads_) {
    if (load.flows > 0) lower = std::max({lower, load.ends, load.first + load.alone});
  }
  result.rank_lower.resize(index_of(ranks));
  result.rank_upper.resize(index_of(ranks));
  for (std::size_t rank = 0; rank < index_of(ranks); ++rank) {
    lower = std::max(lower, rank_lower_[rank]);
    upper = std::max(upper, rank_upper_[rank]);
    result.rank_lower[rank] = rounded(rank_lower_[rank]);
    result.rank_upper[rank] = rounded(std::max(rank_lower_[rank], rank_upper_[rank]));
  }
  upper = std::max(lower, upper);
  result.lower = rounded(lower);
  result.upper = rounded(upper);
  result.exact = upper - lower <= rounding_ps + rounding_share * upper;
}

void PortBounder::refine(const ByteMatrix& bytes, std::span<const Picoseconds> start,
                         PortBound& bound) {
  if (starts_ == Starts::known) refiner_.refine(bytes, start, {loads_, nonbinding_}, bound);
}

}  // namespace moesim::network
