#include "sim/network/flows/transfers.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

#include "sim/base/error.hpp"

namespace moesim::network {

Transfers::Transfers(std::vector<double> capacities, std::size_t route_links)
    : shares_(std::move(capacities), route_links),
      route_links_(route_links),
      services_(shares_.links()),
      ends_(shares_.links()) {}

void Transfers::enter(std::uint32_t flow, double bytes, std::int64_t time,
                      std::span<const Hop> route) {
  assert(bytes > 0 && !route.empty() && route.size() <= route_links_);
  if (flow >= flows_.size()) {
    const std::size_t room = std::max<std::size_t>(flow + 1, flows_.size() * 3 / 2);
    flows_.resize(room);
    lengths_.resize(room);
    routes_.resize(room * route_links_);
  }
  flows_[flow] = {bytes, nowhere, 0};
  lengths_[flow] = static_cast<std::uint8_t>(route.size());
  std::copy(route.begin(), route.end(),
            routes_.begin() + static_cast<std::ptrdiff_t>(flow * route_links_));
  if (!passed_.empty() && time < passed_.back().time) rewind(time);
  if (next_known_ && relative(time) <= next_time_) next_known_ = false;
  waiting_[time].push_back(flow);
}

// A flow enters before others that next() has let in already to see the ends after them: they wait
// again. Shares depend on who is there only, so time runs backwards by the same rates.
void Transfers::rewind(std::int64_t time) {
  while (!passed_.empty() && time < passed_.back().time) {
    Entries entries = std::move(passed_.back());
    passed_.pop_back();
    for (const std::uint32_t flow : entries.flows) {
      release(flow);
      shares_.remove(flow);
    }
    settle({});
    refresh();
    const double before = passed_.empty() ? taken_ : relative(passed_.back().time);
    now_ = std::min(now_, std::max(relative(time), before));
    std::vector<std::uint32_t>& waiting = waiting_[entries.time];
    waiting.insert(waiting.begin(), entries.flows.begin(), entries.flows.end());
    --events_;
  }
  next_known_ = false;
}

// Lets in the flows of the next entry time.
void Transfers::admit() {
  auto entry = waiting_.begin();
  if (shares_.flows() == 0 && passed_.empty()) {
    epoch_ = entry->first;
    now_ = 0;
    taken_ = 0;
  }
  now_ = std::max(now_, relative(entry->first));
  for (const std::uint32_t flow : entry->second) {
    shares_.add(flow, {routes_.data() + flow * route_links_, lengths_[flow]});
  }
  settle(entry->second);
  passed_.push_back({entry->first, std::move(entry->second)});
  waiting_.erase(entry);
  ++events_;
}

void Transfers::mark_stale(int link) {
  Service& service = services_[static_cast<std::size_t>(link)];
  if (service.stale) return;
  service.stale = true;
  stale_.push_back(link);
}

void Transfers::hold(std::uint32_t flow, int link, double bytes) {
  Service& service = services_[static_cast<std::size_t>(link)];
  if (service.flow.empty()) {  // keeps the service small, hence precise
    service.passed = 0;
    service.since = now_;
    service.search = false;
    service.least = MaxMin::unlimited;
  }
  const double leaves = service.at(now_) + bytes;
  flows_[flow].held_by = link;
  flows_[flow].place = static_cast<std::uint32_t>(service.flow.size());
  service.flow.push_back(flow);
  service.leaves.push_back(leaves);
  if (leaves < service.least) service.least = leaves;
  mark_stale(link);
}

// Returns what the flow has still to send.
double Transfers::release(std::uint32_t flow) {
  const Flow& gone = flows_[flow];
  Service& service = services_[static_cast<std::size_t>(gone.held_by)];
  const double leaves = service.leaves[gone.place];
  if (leaves <= service.least) service.search = true;
  const std::uint32_t last = service.flow.back();
  flows_[last].place = gone.place;
  service.flow[gone.place] = last;
  service.leaves[gone.place] = service.leaves.back();
  service.flow.pop_back();
  service.leaves.pop_back();
  mark_stale(gone.held_by);
  return leaves - service.at(now_);
}

// After flows came or went: new levels, and the flows that another link holds back from now on.
void Transfers::settle(std::span<const std::uint32_t> entered) {
  shares_.settle();
  for (const MaxMin::Change& change : shares_.changes()) {
    Service& service = services_[static_cast<std::size_t>(change.link)];
    service.passed = service.at(now_);
    service.since = now_;
    service.level = shares_.level(change.link);
    mark_stale(change.link);
  }
  for (const std::uint32_t flow : entered) {
    hold(flow, shares_.bottleneck(flow, nowhere), flows_[flow].bytes);
  }
  for (const MaxMin::Change& change : shares_.changes()) move(change);
}

// A link whose level fell may hold back any of its flows now; one whose level rose may only cease.
void Transfers::move(const MaxMin::Change& change) {
  const double level = shares_.level(change.link);
  if (level < change.level_before) {
    for (const std::uint32_t flow : shares_.flows_over(change.link)) {
      if (shares_.level(flows_[flow].held_by) > level) reconsider(flow);
    }
    return;
  }
  const std::vector<std::uint32_t>& held = services_[static_cast<std::size_t>(change.link)].flow;
  for (std::size_t place = held.size(); place-- > 0;) reconsider(held[place]);
}

void Transfers::reconsider(std::uint32_t flow) {
  const int before = flows_[flow].held_by;
  const int link = shares_.bottleneck(flow, before);
  if (link == before) return;
  const double bytes = release(flow);
  hold(flow, link, bytes);
  ++moves_;
}

void Transfers::refresh() {
  const bool many = ends_.many(stale_.size());
  for (const int link : stale_) {
    Service& service = services_[static_cast<std::size_t>(link)];
    service.stale = false;
    double end = Tournament::never;
    if (!service.flow.empty()) {
      if (service.search) {
        service.least = *std::min_element(service.leaves.begin(), service.leaves.end());
        service.search = false;
      }
      end = service.since + (service.least - service.passed) / service.level;
    }
    ends_.set(static_cast<std::size_t>(link), end);
    if (!many) ends_.rise(static_cast<std::size_t>(link));
  }
  if (many) ends_.rebuild();
  stale_.clear();
}

// The flows that end at next_time_.
void Transfers::collect() {
  const double limit = next_time_ + together(next_time_);
  due_.clear();
  ends_.at_most(limit, due_);
  next_.flows.clear();
  for (const int link : due_) {
    const Service& service = services_[static_cast<std::size_t>(link)];
    const double served = service.at(limit);
    for (std::size_t place = 0; place < service.flow.size(); ++place) {
      if (service.leaves[place] <= served) next_.flows.push_back(service.flow[place]);
    }
  }
  std::sort(next_.flows.begin(), next_.flows.end());
}

const Transfers::Ends* Transfers::next() {
  if (next_known_) return &next_;
  for (;;) {
    refresh();
    const double end = std::max(ends_.least(), now_);
    if (waiting_.empty()) {
      if (ends_.least() == Tournament::never) return nullptr;
    } else if (shares_.flows() == 0 || relative(waiting_.begin()->first) <= end) {
      admit();
      continue;
    }
    next_time_ = end;
    break;
  }
  constexpr double latest = 9.2e18;
  if (!(next_time_ + static_cast<double>(epoch_) < latest)) {
    throw Error("network: a transfer ends later than simulated time reaches (106 days)");
  }
  next_.time = epoch_ + std::llround(next_time_);
  collect();
  next_known_ = true;
  return &next_;
}

void Transfers::take() {
  assert(next_known_);
  now_ = next_time_;
  taken_ = now_;
  passed_.clear();
  for (const std::uint32_t flow : next_.flows) {
    release(flow);
    flows_[flow].held_by = nowhere;
    shares_.remove(flow);
  }
  settle({});
  next_known_ = false;
  ++events_;
}

Transfers::Counts Transfers::counts() const { return {events_, moves_, shares_.counts()}; }

}  // namespace moesim::network
