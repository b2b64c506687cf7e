#include "sim/network/ports/bound_refiner.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "sim/base/numbers.hpp"

namespace moesim::network {
namespace {

constexpr int rounds = 6;
constexpr double worth_another = 0.002;  // by which a round has to narrow the makespan's bound

}  // namespace

void BoundRefiner::list_flows(const ByteMatrix& bytes, std::span<const Picoseconds> start,
                              const BoundedLinks& links) {
  for (auto* real : {&flows_.bytes, &flows_.enters, &flows_.upper}) real->clear();
  for (auto* whole : {&flows_.first_link, &flows_.links, &flows_.source, &flows_.destination}) {
    whole->clear();
  }
  for (int source = 0; source < bytes.ranks(); ++source) {
    const double begins = start.empty() ? 0 : static_cast<double>(start[index_of(source)].count);
    for (int destination = 0; destination < bytes.ranks(); ++destination) {
      const std::int64_t amount = bytes.at(source, destination);
      if (source == destination || amount == 0) continue;
      const Route route = topology_.route(source, destination);
      const double latency = static_cast<double>(topology_.latency(route).count);
      flows_.bytes.push_back(static_cast<double>(amount));
      flows_.enters.push_back(begins + latency);
      flows_.first_link.push_back(static_cast<int>(flows_.links.size()));
      std::copy_if(route.begin(), route.end(), std::back_inserter(flows_.links),
                   [&](int link) { return !links.nonbinding[index_of(link)]; });
      flows_.source.push_back(source);
      flows_.destination.push_back(destination);
    }
  }
  flows_.first_link.push_back(static_cast<int>(flows_.links.size()));
  flows_.upper.resize(flows_.bytes.size());
}

// Shares of each link over the steps of [begin, end), from the flows' latest ends.
void BoundRefiner::set_grid(double begin, double end) {
  grid_.begin = begin;
  grid_.step = (end - begin) / grid;
  grid_.share.assign((topology_.links.size() + 1) * grid, 0);
  for (std::size_t flow = 0; flow < flows_.bytes.size(); ++flow) {
    // There at the beginning of steps 0 to last.
    const double steps = std::ceil((flows_.upper[flow] - begin) / grid_.step);
    const int last = std::clamp(static_cast<int>(steps), 1, grid) - 1;
    for (int link = flows_.first_link[flow]; link < flows_.first_link[flow + 1]; ++link) {
      grid_.share[index_of(flows_.links[index_of(link)]) * grid + index_of(last)] += 1;
    }
  }
  for (std::size_t link = 0; link < topology_.links.size(); ++link) {
    const double rate = topology_.links[link].bandwidth.bytes_per_second * 1e-12;
    double there = 0;
    for (int step = grid - 1; step >= 0; --step) {
      double& share = grid_.share[link * grid + index_of(step)];
      there += share;
      share = there > 0 ? rate / there : rate;
    }
  }
}

void BoundRefiner::least_rates(std::size_t flow) {
  const int* link = flows_.links.data() + flows_.first_link[flow];
  const int* last = flows_.links.data() + flows_.first_link[flow + 1];
  const double* share = grid_.share.data() + index_of(*link) * grid;
  std::copy(share, share + grid, rate_.begin());
  for (++link; link != last; ++link) {
    share = grid_.share.data() + index_of(*link) * grid;
    for (int step = 0; step < grid; ++step)
      rate_[index_of(step)] = std::min(rate_[index_of(step)], share[step]);
  }
}

// When a flow has passed its bytes at the least rates.
double BoundRefiner::latest_end(std::size_t flow) const {
  double left = flows_.bytes[flow];
  const double enters = flows_.enters[flow];
  const int first = static_cast<int>((enters - grid_.begin) / grid_.step);
  double time = enters;
  for (int step = std::max(0, first); step < grid; ++step) {
    const double end = grid_.begin + grid_.step * (step + 1);
    const double passes = rate_[index_of(step)] * (end - time);
    if (passes >= left) return time + left / rate_[index_of(step)];
    left -= passes;
    time = end;
  }
  return flows_.upper[flow];
}

// Adds what a flow has certainly passed at the beginning of each step to its links.
void BoundRefiner::add_passed(std::size_t flow) {
  double passed = 0;
  for (int step = 0; step < grid; ++step) {
    for (int link = flows_.first_link[flow]; link < flows_.first_link[flow + 1]; ++link) {
      grid_.passed[index_of(flows_.links[index_of(link)]) * grid + index_of(step)] += passed;
    }
    const double begin = grid_.begin + grid_.step * step;
    const double there = std::clamp(begin + grid_.step - flows_.enters[flow], 0.0, grid_.step);
    passed = std::min(flows_.bytes[flow], passed + rate_[index_of(step)] * there);
  }
}

// How long the other flows of its links keep a flow, whatever they get beyond what is sure.
double BoundRefiner::longest_duration(std::size_t flow, const BoundedLinks& links) const {
  double latest = 0;
  for (int at_link = flows_.first_link[flow]; at_link < flows_.first_link[flow + 1]; ++at_link) {
    const auto link = index_of(flows_.links[index_of(at_link)]);
    const double rate = topology_.links[link].bandwidth.bytes_per_second * 1e-12;
    const double first = links.loads[link].first;
    const double* all = grid_.passed.data() + link * grid;
    double own = 0;
    double lasts = 0;
    for (int step = 0; step < grid; ++step) {
      const double begin = grid_.begin + grid_.step * step;
      // Inside the step the others have passed no less than at its beginning.
      const double needs = first + (flows_.bytes[flow] + all[step] - own) / rate;
      lasts = std::max(begin, needs);
      if (needs <= begin + grid_.step) break;
      const double there = std::clamp(begin + grid_.step - flows_.enters[flow], 0.0, grid_.step);
      own = std::min(flows_.bytes[flow], own + rate_[index_of(step)] * there);
    }
    latest = std::max(latest, lasts);
  }
  return latest;
}

// Where the rounds start: the bounds of the flows' ranks and their slowest fair shares.
void BoundRefiner::start_from(const PortBound& bound, const BoundedLinks& links) {
  for (std::size_t flow = 0; flow < flows_.upper.size(); ++flow) {
    const auto source = index_of(flows_.source[flow]);
    const auto destination = index_of(flows_.destination[flow]);
    double slowest = 0;
    for (int link = flows_.first_link[flow]; link < flows_.first_link[flow + 1]; ++link) {
      slowest = std::max(slowest, links.loads[index_of(flows_.links[index_of(link)])].per_byte);
    }
    const Picoseconds by_rank = std::min(bound.rank_upper[source], bound.rank_upper[destination]);
    flows_.upper[flow] = 1 + std::min(static_cast<double>(by_rank.count),
                                      flows_.enters[flow] + slowest * flows_.bytes[flow]);
  }
}

// Rounds until one narrows too little. Returns when all flows have certainly ended.
double BoundRefiner::narrow_upper(double begin, double end) {
  for (int round = 0; round < rounds; ++round) {
    set_grid(begin, end);
    double latest = 0;
    for (std::size_t flow = 0; flow < flows_.upper.size(); ++flow) {
      least_rates(flow);
      flows_.upper[flow] = std::min(flows_.upper[flow], latest_end(flow));
      latest = std::max(latest, flows_.upper[flow]);
    }
    const bool enough = latest > end - worth_another * (end - begin);
    end = std::min(end, latest + 1);
    if (enough) break;
  }
  return end;
}

// Notes the bounds of the flows at their ranks and in the makespan.
void BoundRefiner::note_ends(const BoundedLinks& links, PortBound& bound) {
  std::vector<Picoseconds> upper(bound.rank_upper.size());
  for (std::size_t flow = 0; flow < flows_.upper.size(); ++flow) {
    least_rates(flow);
    const auto lasts = Picoseconds::rounded(std::floor(longest_duration(flow, links)));
    const auto ends = Picoseconds::rounded(std::ceil(flows_.upper[flow]));
    for (const auto rank : {index_of(flows_.source[flow]), index_of(flows_.destination[flow])}) {
      upper[rank] = std::max(upper[rank], ends);
      bound.rank_lower[rank] = std::max(bound.rank_lower[rank], lasts);
    }
    bound.lower = std::max(bound.lower, lasts);
  }
  for (std::size_t rank = 0; rank < upper.size(); ++rank) {
    bound.rank_upper[rank] =
        std::max(bound.rank_lower[rank], std::min(bound.rank_upper[rank], upper[rank]));
  }
  const Picoseconds all = *std::max_element(upper.begin(), upper.end());
  bound.upper = std::max(bound.lower, std::min(bound.upper, all));
}

void BoundRefiner::refine(const ByteMatrix& bytes, std::span<const Picoseconds> start,
                          const BoundedLinks& links, PortBound& bound) {
  list_flows(bytes, start, links);
  if (flows_.bytes.empty()) return;
  rate_.resize(grid);
  const double begin = *std::min_element(flows_.enters.begin(), flows_.enters.end());
  start_from(bound, links);
  set_grid(begin, narrow_upper(begin, static_cast<double>(bound.upper.count) + 1));
  grid_.passed.assign((topology_.links.size() + 1) * grid, 0);
  for (std::size_t flow = 0; flow < flows_.upper.size(); ++flow) {
    least_rates(flow);
    add_passed(flow);
  }
  note_ends(links, bound);
}

}  // namespace moesim::network
