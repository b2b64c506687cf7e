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

// Why exchanges of equal blocks within `groups` may delay each other; empty if they cannot: no two
// groups share a link, except links of switches with at least the bandwidth of all ports below
// them.
std::string shared_links(const network::Topology& topology, const engine::Partition& groups);

// Where the scenario has a dispatcher, its law gives the times. Else what the scenario asks for;
// where it leaves the choice: fast where that is certified, else flows, unless their messages of a
// replica, `exchanges` all-to-alls of every group, are more than `affordable_messages` (seconds),
// or kernels slow each other down, which flows do not have.
//
// Blocks of different sizes are never certified: the fast network assumes ports that are never
// idle, which gives a lower bound. Compared with flows, a training step of 32 layers at EP 64 is
// 0.6 % shorter with mildly skewed routing and 2 % shorter with strong skew; at EP 8 the two agree
// to 1e-4.
//
// Fast is certified for equal blocks if all groups are placed on the domains in the same way and
// share no link that could delay them. An exchange is then alone on its links. The links of its
// last member carry no more than the busiest link of the curve or the port model, and max-min
// sharing gives each of n messages at least 1 / n of it: the exchange ends one link time after its
// last member arrived, whenever the others arrived.
constexpr std::int64_t affordable_messages = 100'000;
NetworkChoice choose_network(const scenario::Scenario& scenario, const engine::Partition& groups,
                             int exchanges);

// CPU seconds of one core that the exact flows of a replica take, to a factor of three; 0 where the
// scenario does not ask for flows. An all-to-all of P ranks with blocks of different sizes takes
// 3 ms (P / 64)^3.5, of equal blocks 1 ms (P / 64)^2.3 (measured at P = 64 to 256 and to 1,024, on
// nodes of 8 A100 and H100).
double flows_seconds(const scenario::Scenario& scenario);

}  // namespace moesim::step
