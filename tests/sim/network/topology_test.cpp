#include "sim/network/topology/topology.hpp"

#include <limits>

#include "tests/support/catch.hpp"

using moesim::Bandwidth;
using moesim::Picoseconds;
using moesim::network::check;
using moesim::network::crossbar;
using moesim::network::Tier;
using moesim::network::Topology;

namespace {

// Ranks 0 and 2 share a domain, rank 1 is alone: no two neighbours do.
Topology scattered() {
  Topology topology = crossbar(3, Bandwidth(50e9), Picoseconds(0));
  topology.domain_of = {0, 1, 0};
  for (const char* name : {"a up", "a down", "c up", "c down"}) {
    topology.links.push_back({name, Bandwidth(450e9), Picoseconds(0)});
  }
  topology.inner.port_up = {6, -1, 8};
  topology.inner.port_down = {7, -1, 9};
  return topology;
}

Topology with_tiers() {
  Topology topology = crossbar(4, Bandwidth(1e9), Picoseconds(0));
  for (int link = 0; link < 6; ++link) {
    topology.links.push_back({"switch", Bandwidth(1e9), Picoseconds(0)});
  }
  topology.outer.tiers = {Tier{{0, 0, 1, 1}, {8, 9}, {10, 11}}, Tier{{0, 0, 0, 0}, {12}, {13}}};
  return topology;
}

}  // namespace

TEST_CASE("a complete topology passes, also where a rank needs no inner port") {
  check(crossbar(1, Bandwidth(1), Picoseconds(0)));
  check(crossbar(5, Bandwidth(1), Picoseconds(0)));
  check(scattered());
  check(with_tiers());
}

TEST_CASE("a topology that does not connect names the rank") {
  CHECK_THROWS_WITH(check(Topology{}), ContainsSubstring("no ranks"));

  Topology inner = scattered();
  inner.inner.port_up[2] = -1;
  CHECK_THROWS_WITH(check(inner), ContainsSubstring("rank 2 has no port inside its domain"));
  inner = scattered();
  inner.inner.port_down.resize(2);
  CHECK_THROWS_WITH(check(inner), ContainsSubstring("rank 2 has no port inside its domain"));

  Topology outer = scattered();
  outer.outer.port_down[1] = 99;
  CHECK_THROWS_WITH(check(outer), ContainsSubstring("rank 1 has no port towards other domains"));
  outer = scattered();
  outer.outer = {};
  CHECK_THROWS_WITH(check(outer), ContainsSubstring("rank 0 has no port towards other domains"));
}

TEST_CASE("a level of switches is complete, and there are three at most") {
  Topology topology = with_tiers();
  topology.outer.tiers[0].switch_of.resize(3);
  CHECK_THROWS_WITH(check(topology), ContainsSubstring("rank 3 is below no switch of level 1"));

  topology = with_tiers();
  topology.outer.tiers[0].up.resize(1);
  CHECK_THROWS_WITH(check(topology), ContainsSubstring("switch 1 of level 1"));

  topology = with_tiers();
  topology.outer.tiers.resize(4, topology.outer.tiers.back());
  CHECK_THROWS_WITH(check(topology), ContainsSubstring("at most 3 are supported"));
}

TEST_CASE("a link of no bandwidth is named") {
  for (const double rate : {0.0, -1.0, std::numeric_limits<double>::infinity(),
                            std::numeric_limits<double>::quiet_NaN()}) {
    Topology topology = crossbar(3, Bandwidth(1e9), Picoseconds(0));
    topology.links[3].bandwidth = Bandwidth(rate);
    CHECK_THROWS_WITH(check(topology), ContainsSubstring("rank 1 down: a bandwidth of"));
  }
  Topology topology = crossbar(3, Bandwidth(1e9), Picoseconds(0));
  topology.links[0].latency = Picoseconds(-1);
  CHECK_THROWS_WITH(check(topology), ContainsSubstring("rank 0 up: a latency below 0"));
}

TEST_CASE("an uplink is not binding when the ports below it cannot fill it") {
  // Two ports of 1 GB/s below each switch, each uplink 1 GB/s.
  Topology topology = with_tiers();
  const Tier& tier = topology.outer.tiers[0];
  const auto nonbinding = [&] {  // of the switches that have an uplink
    const std::vector<bool> of_links = moesim::network::nonbinding_uplinks(topology);
    std::vector<bool> found;
    for (const int link : tier.up) {
      if (link >= 0) found.push_back(of_links[static_cast<std::size_t>(link)]);
    }
    return found;
  };
  CHECK(nonbinding() == std::vector<bool>{false, false});
  topology.links[8].bandwidth = Bandwidth(2e9);
  CHECK(nonbinding() == std::vector<bool>{true, false});
  topology.links[8].bandwidth = Bandwidth(2e9 * (1 - 1e-9));
  CHECK(nonbinding() == std::vector<bool>{false, false});
  topology.outer.port_up[1] = topology.outer.port_up[0];  // shared: no more than one port's
  CHECK(nonbinding() == std::vector<bool>{true, false});
  CHECK_FALSE(all_nonbinding(nonbinding_uplinks(topology), tier));
  topology.outer.tiers[0].up[1] = -1;  // no uplink, nothing to fill
  CHECK(nonbinding() == std::vector<bool>{true});
  topology.outer.port_down[1] = topology.outer.port_down[0];
  topology.outer.tiers[0].down[1] = -1;
  CHECK(all_nonbinding(nonbinding_uplinks(topology), tier));
}
