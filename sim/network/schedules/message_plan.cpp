#include "sim/network/schedules/message_plan.hpp"

#include <algorithm>
#include <cassert>
#include <queue>

#include "sim/base/numbers.hpp"
#include "sim/network/flows/flow.hpp"
#include "sim/network/flows/flow_solver.hpp"
#include "sim/network/topology/lean_topology.hpp"

namespace moesim::network {
namespace {

// Steps by the time they may begin; of one time, in the order of their numbers.
struct Ready {
  Picoseconds time;
  int step;
  bool operator<(const Ready& other) const {  // the queue's top is the first
    return time != other.time ? time > other.time : step > other.step;
  }
};

// Who waits for each step: the waits in the order of the earlier step.
struct Followers {
  std::vector<std::size_t> first;  // [step + 1]
  std::vector<int> later;

  Followers(std::size_t steps, const std::vector<std::pair<int, int>>& waits)
      : first(steps + 1), later(waits.size()) {
    for (const auto& wait : waits) ++first[index_of(wait.first) + 1];
    for (std::size_t step = 0; step < steps; ++step) first[step + 1] += first[step];
    std::vector<std::size_t> next(first.begin(), first.end() - 1);
    for (const auto& wait : waits) later[next[index_of(wait.first)]++] = wait.second;
  }
};

}  // namespace

int MessagePlan::add(int source, int destination, std::int64_t bytes, Picoseconds earliest) {
  messages_.push_back({source, destination, bytes, earliest});
  return static_cast<int>(messages_.size()) - 1;
}

ByteMatrix MessagePlan::bytes(int ranks) const {
  ByteMatrix sum(ranks);
  for (const Message& message : messages_) {
    if (!message.joins()) sum.at(message.source, message.destination) += message.bytes;
  }
  return sum;
}

MessagePlan::Times MessagePlan::run(const Topology& topology, const Progress& progress) const {
  Times times;
  times.rank_finish.resize(index_of(topology.ranks()));
  std::vector<int> missing(messages_.size());
  for (const auto& wait : waits_) ++missing[index_of(wait.second)];
  const Followers followers(messages_.size(), waits_);
  std::vector<Picoseconds> begin(messages_.size());
  std::priority_queue<Ready> ready;
  for (std::size_t step = 0; step < messages_.size(); ++step) {
    begin[step] = messages_[step].earliest;
    if (missing[step] == 0) ready.push({begin[step], static_cast<int>(step)});
  }
  std::size_t ended = 0;
  constexpr std::size_t telling = 4096;
  const auto end_step = [&](int step, Picoseconds time) {
    if (++ended % telling == 0 && progress) progress(ended, messages_.size());
    for (std::size_t at_wait = followers.first[index_of(step)];
         at_wait < followers.first[index_of(step) + 1]; ++at_wait) {
      const auto later = index_of(followers.later[at_wait]);
      begin[later] = std::max(begin[later], time);
      if (--missing[later] == 0) ready.push({begin[later], static_cast<int>(later)});
    }
  };
  const LeanTopology lean(topology);
  FlowSolver solver(lean.links());
  std::vector<int> step_of;  // [flow]
  while (true) {
    const auto next = solver.next();
    if (!ready.empty() && (!next || ready.top().time <= next->time)) {
      const auto [time, step] = ready.top();
      ready.pop();
      const Message& message = messages_[index_of(step)];
      if (message.joins()) {
        end_step(step, time);
        continue;
      }
      const Picoseconds enters = time + lean.delay(message.source, message.destination);
      const int flow = solver.start({message.source, message.destination, message.bytes, enters});
      if (step_of.size() <= index_of(flow)) step_of.resize(index_of(flow) + 1);
      step_of[index_of(flow)] = step;
      continue;
    }
    if (!next) break;
    solver.take();
    const int step = step_of[index_of(next->flow)];
    const Message& message = messages_[index_of(step)];
    for (const int rank : {message.source, message.destination}) {
      times.rank_finish[index_of(rank)] = std::max(times.rank_finish[index_of(rank)], next->time);
    }
    times.makespan = std::max(times.makespan, next->time);
    end_step(step, next->time);
  }
  assert(std::all_of(missing.begin(), missing.end(), [](int count) { return count == 0; }));
  return times;
}

}  // namespace moesim::network
