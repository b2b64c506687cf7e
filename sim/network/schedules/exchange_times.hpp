#pragma once

#include <span>
#include <vector>

#include "sim/base/byte_matrix.hpp"
#include "sim/base/units.hpp"
#include "sim/network/ports/port_bound.hpp"
#include "sim/network/schedules/exchange_settings.hpp"
#include "sim/network/schedules/message_plan.hpp"
#include "sim/network/topology/topology.hpp"

namespace moesim::network {

// What a schedule is written from. `start` has one time per rank.
struct ExchangeRequest {
  const Topology& topology;
  const ByteMatrix& bytes;
  std::span<const Picoseconds> start;
  const ExchangeSettings& settings;
};

// When an exchange is over. Times count from the origin of the start times.
struct ExchangeTimes {
  Picoseconds makespan;  // when the last byte arrives; 0 if there is none
  // The later of a rank's last byte sent and received; its own start if it has neither.
  std::vector<Picoseconds> rank_finish;
  Method used = Method::flows;  // flows or fast
  Picoseconds lower, upper;     // the makespan is certain to lie here; equal under flows
  Picoseconds tolerance{0};     // of flows: see flow_tolerance(); 0 for those told apart exactly
};

// What the flows of a burst of so many ranks, of a size each, may be off by before their rates are
// fitted again (FlowOptions::tolerance): 1 ps, which is exact, 1 ns from 256 ranks and 20 ns from
// 512 ranks on. The makespan is off by no more than a few times that.
Picoseconds flow_tolerance(int ranks);

// The times of all messages sent at once, by the method of the request's settings.
ExchangeTimes times_of_burst(const ExchangeRequest& request);
// The times of a schedule that is simulated message by message.
ExchangeTimes times_of_plan(const MessagePlan& plan, const ExchangeRequest& request);
// The times where the settings accept the bounds: their lower ends.
ExchangeTimes times_of_bound(PortBound bound);
// Whether the settings take the lower end of these bounds for the time.
bool accepts(const ExchangeSettings& settings, const PortBound& bound);

}  // namespace moesim::network
