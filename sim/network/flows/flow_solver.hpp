#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "sim/network/flows/flow.hpp"
#include "sim/network/flows/transfers.hpp"
#include "sim/network/topology/topology.hpp"

namespace moesim::network {

struct FlowEnd {
  Picoseconds time;
  int flow = 0;
};

// Exact max-min sharing of a topology's links among flows that start at any time. A flow occupies
// all links of its route from its start plus the latency of the route until its last byte.
class FlowSolver {
 public:
  // Keeps a reference: `topology` must outlive it. Throws Error as check(topology) does.
  explicit FlowSolver(const Topology& topology);

  // Returns the flow's number: 0, 1, ... in the order of calls. Throws UsageError for a rank that
  // the topology does not have, bytes below 0, and a start before the last end that was taken.
  // Looking at next() does not bind: a flow may start before the end it shows.
  int start(const Flow& flow);
  // The next end if nothing else starts before it, of flows that end at one time the lowest number
  // first; nothing when no flow is under way.
  std::optional<FlowEnd> next();
  // Takes the end that next() shows; does nothing when there is none.
  void take();

  Transfers::Counts counts() const { return transfers_.counts(); }

 private:
  std::uint32_t slot_for(int flow);

  const Topology& topology_;
  Transfers transfers_;
  std::vector<Hop> route_;    // scratch of start()
  std::vector<int> flow_of_;  // [slot]
  std::vector<std::uint32_t> free_;
  // Ends known: of nothing to send (by time and flow), and the rest of those taken at one time.
  std::priority_queue<std::pair<std::int64_t, int>, std::vector<std::pair<std::int64_t, int>>,
                      std::greater<>>
      at_once_;
  std::vector<int> ended_;  // highest number first
  std::int64_t ended_time_ = 0;
  std::int64_t taken_ = 0;
  int started_ = 0;
};

// Throws UsageError for ranks that the topology does not have and for bytes below 0.
void check(const Topology& topology, const Flow& flow);

// The capacities of a topology's links in bytes per picosecond, and the most links of a route.
std::vector<double> link_capacities(const Topology& topology);
std::size_t longest_route(const Topology& topology);
// A route's links, each once: a link that is passed twice counts twice. Replaces `hops`.
template <typename Links>
void hops_of(const Links& route, std::vector<Hop>& hops) {
  hops.clear();
  for (const auto passed : route) {
    const int link = static_cast<int>(passed);
    std::size_t place = 0;
    while (place < hops.size() && hops[place].link != link) ++place;
    if (place == hops.size()) {
      hops.push_back({link, 1});
    } else {
      hops[place].weight += 1;
    }
  }
}

}  // namespace moesim::network
