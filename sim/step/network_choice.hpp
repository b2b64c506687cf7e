#pragma once

#include <cstdint>
#include <string>

#include "sim/engine/program.hpp"
#include "sim/network/topology/topology.hpp"
#include "sim/scenario/scenario.hpp"

namespace moesim::step {

// Which network simulates the all-to-alls of a step, and why.
struct NetworkChoice {
  scenario::Network used = scenario::Network::fast;  // or flows
  bool certified = true;                             // flows, or fast where it is as good
  std::string reason;  // "equal blocks, exact alone"; empty without all-to-alls
};

// Why exchanges of equal blocks within `groups` may delay each other; empty if they cannot: no link
// but those of switches that pass on all that the ports below them send is used by two groups.
std::string shared_links(const network::Topology& topology, const engine::Partition& groups);

// What the scenario asks for; where it leaves the choice: fast where that is certified, else flows,
// unless their messages of a replica, `exchanges` all-to-alls of every group, are more than
// `affordable_messages` (seconds), or kernels slow each other down, which flows do not have.
//
// Blocks of different sizes are never certified: ports that work without a gap are a bound from
// below. Measured against flows, a training step of 32 layers at EP 64 is 0.6 % shorter with routes
// of mild skew, 2 % with strong skew; at EP 8 the two agree to 1e-4.
//
// Fast is certified for equal blocks if groups are placed equally on the domains and share no link
// that could hold them back. An exchange then is alone on its links; the links of its last member
// carry no more than the busiest one of the curve or the port model, of which max-min gives each of
// n messages at least the n-th part: it ends that link's time after its last member came, whoever
// came before.
constexpr std::int64_t affordable_messages = 100'000;
NetworkChoice choose_network(const scenario::Scenario& scenario, const engine::Partition& groups,
                             int exchanges);

}  // namespace moesim::step
