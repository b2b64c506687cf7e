#include "sim/network/flows/flow_fabric.hpp"

#include <utility>

namespace moesim::network {
namespace {

// Whether an even exchange ends first, or at the same time; one that is not there never ends.
bool comes_first(const std::optional<Completion>& even, const std::optional<FlowEnd>& end) {
  return !end || (even && even->time <= end->time);
}

}  // namespace

void FlowFabric::begin(int exchange, Picoseconds now, Picoseconds alone) {
  even_.begin(exchange, now, alone);
}

void FlowFabric::announce(int exchange, std::span<const int> members, ByteMatrix bytes) {
  Exchange& coming = under_way_[exchange];
  coming.members.assign(members.begin(), members.end());
  coming.members_left = static_cast<int>(members.size());
  coming.left.assign(members.size(), 1);
  for (int source = 0; source < bytes.ranks(); ++source) {
    for (int destination = 0; destination < bytes.ranks(); ++destination) {
      if (source == destination || bytes.at(source, destination) == 0) continue;
      ++coming.left[static_cast<std::size_t>(source)];
      ++coming.left[static_cast<std::size_t>(destination)];
    }
  }
  coming.bytes = std::move(bytes);
}

void FlowFabric::arrive(int exchange, int member, Picoseconds now) {
  const Exchange& there = under_way_.at(exchange);
  for (int destination = 0; destination < there.bytes.ranks(); ++destination) {
    const std::int64_t bytes = there.bytes.at(member, destination);
    if (destination == member || bytes == 0) continue;
    const int flow =
        solver_.start({there.members[static_cast<std::size_t>(member)],
                       there.members[static_cast<std::size_t>(destination)], bytes, now});
    if (messages_.empty()) first_flow_ = flow;
    messages_.push_back({exchange, member, destination});
  }
  settle(now, exchange, member);
}

void FlowFabric::settle(Picoseconds now, int exchange, int member) {
  const auto found = under_way_.find(exchange);
  Exchange& there = found->second;
  if (--there.left[static_cast<std::size_t>(member)] > 0) return;
  done_.push_back({now, exchange, member});
  if (--there.members_left == 0) under_way_.erase(found);
  if (under_way_.empty()) messages_.clear();
}

std::optional<Completion> FlowFabric::next() {
  if (!done_.empty()) return done_.front();
  const std::optional<Completion> even = even_.next();
  const std::optional<FlowEnd> end = solver_.next();
  if (comes_first(even, end)) return even;
  const Message& message = messages_[static_cast<std::size_t>(end->flow - first_flow_)];
  return Completion{end->time, message.exchange, Completion::nobody};
}

void FlowFabric::take() {
  if (!done_.empty()) return done_.pop_front();
  const std::optional<Completion> even = even_.next();
  const std::optional<FlowEnd> end = solver_.next();
  if (comes_first(even, end)) return even_.take();
  solver_.take();
  const Message message = messages_[static_cast<std::size_t>(end->flow - first_flow_)];
  settle(end->time, message.exchange, message.source);
  settle(end->time, message.exchange, message.destination);
}

}  // namespace moesim::network
