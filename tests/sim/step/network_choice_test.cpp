#include "sim/step/exchanges/network_choice.hpp"

#include <cmath>

#include "sim/routing/routers/router_name.hpp"
#include "tests/support/catch.hpp"

namespace moesim::step {
namespace {

// Ports of 50 bytes per ns, three ranks below every leaf, whose way up carries `up` of the three.
network::Topology leaves_of_three(int ranks, double up) {
  network::Topology topology = network::crossbar(ranks, Bandwidth(50e9), Picoseconds(500'000));
  network::Tier tier;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank % 3 == 0) {
      for (std::vector<int>* uplinks : {&tier.up, &tier.down}) {
        uplinks->push_back(static_cast<int>(topology.links.size()));
        topology.links.push_back({"leaf", Bandwidth(50e9 * up), Picoseconds(0)});
      }
    }
    tier.switch_of.push_back(rank / 3);
  }
  topology.outer.tiers.push_back(tier);
  return topology;
}

scenario::Scenario on(const char* cluster, int gpus, int expert_parallel) {
  scenario::Scenario scenario;
  scenario.cluster = std::make_shared<cluster::Cluster>(cluster::Cluster::load(cluster));
  scenario.gpus = gpus;
  scenario.expert_parallel = expert_parallel;
  return scenario;
}

NetworkChoice chosen(const scenario::Scenario& scenario, int exchanges = 8) {
  return choose_network(scenario, engine::blocks(scenario.gpus, scenario.expert_parallel),
                        exchanges);
}

}  // namespace

TEST_CASE("expert groups share links where these can hold them back") {
  // 0 .. 3 and 4 .. 7 both leave the second leaf (3, 4, 5).
  CHECK(shared_links(leaves_of_three(12, 2), engine::blocks(12, 4)) ==
        "expert groups share links: leaf");
  CHECK(shared_links(leaves_of_three(12, 3), engine::blocks(12, 4)).empty());
  // No group leaves a leaf, or only one does.
  CHECK(shared_links(leaves_of_three(12, 1), engine::blocks(12, 3)).empty());
  CHECK(shared_links(leaves_of_three(12, 1), engine::blocks(12, 12)).empty());
  // Ranks 2 and 3 share a port, but they are of two groups.
  network::Topology topology = leaves_of_three(12, 3);
  topology.outer.port_up[3] = topology.outer.port_up[2];
  CHECK(shared_links(topology, engine::blocks(12, 3)) == "expert groups share links: rank 2 up");
  CHECK(shared_links(topology, engine::blocks(12, 4)).empty());
  // A plane that rank 0 has no port in, under switches without a way up, slows no rank.
  topology = leaves_of_three(12, 3);
  network::Tier dead_end;
  dead_end.switch_of = std::vector<int>(12, 0);
  dead_end.up = dead_end.down = {-1};
  topology.inner = {topology.outer.port_up, topology.outer.port_down, {dead_end}};
  topology.inner.port_up[0] = topology.inner.port_down[0] = -1;
  CHECK(shared_links(topology, engine::blocks(12, 4)).empty());
}

TEST_CASE("auto takes flows where fast is not certified, and says why") {
  CHECK(chosen(on("hgx-h100", 32, 8)).reason == "equal blocks, exact alone");
  CHECK(chosen(on("hgx-h100", 32, 16)).used == scenario::Network::fast);
  CHECK(chosen(on("hgx-h100", 32, 8), 0).reason.empty());
  scenario::Scenario scenario = on("hgx-h100", 24, 6);
  CHECK(chosen(scenario).used == scenario::Network::flows);
  CHECK(chosen(scenario).certified);
  // Too many messages: 24 x 5 x 1000.
  CHECK(chosen(scenario, 1000).used == scenario::Network::fast);
  CHECK_FALSE(chosen(scenario, 1000).certified);
  scenario.network = scenario::Network::flows;
  CHECK(chosen(scenario, 1000).used == scenario::Network::flows);
  scenario.network = scenario::Network::fast;
  CHECK(chosen(scenario).used == scenario::Network::fast);
  CHECK_FALSE(chosen(scenario).certified);
  // A slow port inside a node is the busiest of its group; between nodes it need not be.
  scenario = on("hgx-h100", 32, 8);
  scenario.conditions.slow_links = {{3, 2}};
  CHECK(chosen(scenario).used == scenario::Network::fast);
  scenario.expert_parallel = 16;
  CHECK(chosen(scenario).used == scenario::Network::flows);
}

// Too many messages for exact flows: whether the fast network has ports for them is asked.
TEST_CASE("a cluster that cannot be is an error, whatever network it would take") {
  scenario::Scenario scenario = on("hgx-h100", 64, 64);
  scenario.router = routing::parse_router("dropless", 2);
  CHECK(chosen(scenario, 64).used == scenario::Network::fast);
  cluster::Cluster broken = *scenario.cluster;
  broken.nic.bytes_per_second = 0;
  scenario.cluster = std::make_shared<cluster::Cluster>(broken);
  CHECK_THROWS_WITH(chosen(scenario, 64), ContainsSubstring("carries nothing"));
}

TEST_CASE("exact flows say what they cost: by a power of ranks, less with equal blocks") {
  scenario::Scenario asked = on("hgx-h100", 128, 64);
  asked.model =
      std::make_shared<model::Model>(model::Model::load("switch-base-8"));  // 12 MoE layers
  asked.mode = scenario::Mode::prefill;
  asked.router = routing::parse_router("dropless", 2);
  CHECK(flows_seconds(asked) == 0);  // auto decides by the number of messages
  asked.network = scenario::Network::flows;
  CHECK(flows_seconds(asked) == Approx(0.003 * 24 * 2));
  asked.expert_parallel = 128;
  CHECK(flows_seconds(asked) == Approx(0.003 * 24 * std::pow(2, 3.5)));
  asked.router = routing::parse_router("top1", 0);
  CHECK(flows_seconds(asked) == Approx(0.001 * 24 * std::pow(2, 2.3)));
}

}  // namespace moesim::step
