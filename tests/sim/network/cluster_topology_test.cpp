#include "sim/network/topology/cluster_topology.hpp"

#include <numeric>
#include <random>
#include <string>

#include "sim/base/file.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/base/shipped.hpp"
#include "sim/cluster/rank_placement.hpp"
#include "tests/support/catch.hpp"

using moesim::Picoseconds;
using moesim::cluster::Cluster;
using moesim::cluster::contiguous_placement;
using moesim::network::check;
using moesim::network::LinkRate;
using moesim::network::Route;
using moesim::network::Topology;
using moesim::network::topology_of;

namespace {

// The names of a route's links: "GPU 0 NVLink up, GPU 1 NVLink down".
std::string names(const Topology& topology, int source, int destination) {
  std::string text;
  for (const int link : topology.route(source, destination)) {
    text += (text.empty() ? "" : ", ") + topology.links[static_cast<std::size_t>(link)].name;
  }
  return text;
}

double slowest(const Topology& topology, int source, int destination) {
  double least = 1e99;
  for (const int link : topology.route(source, destination)) {
    least =
        std::min(least, topology.links[static_cast<std::size_t>(link)].bandwidth.bytes_per_second);
  }
  return least;
}

double latency_us(const Topology& topology, int source, int destination) {
  return topology.latency(topology.route(source, destination)).us();
}

Cluster changed(const char* name, const std::string& from, const std::string& to) {
  std::string text = moesim::read_file(moesim::find_document("clusters", name));
  REQUIRE(text.find(from) != std::string::npos);
  return Cluster::read(
      moesim::Document::parse(text.replace(text.find(from), from.size(), to), "changed.json"));
}

}  // namespace

TEST_CASE("the ideal clusters have the links of the known answers") {
  const Topology flat = topology_of(Cluster::load("ideal-switch"), contiguous_placement(4));
  REQUIRE(flat.links.size() == 8);
  for (const auto& link : flat.links) {
    CHECK(link.bandwidth.bytes_per_second == 50e9);
    CHECK(link.latency == Picoseconds(500'000));
  }
  CHECK(latency_us(flat, 3, 1) == 1);
  CHECK(flat.route(3, 1).size() == 2);

  const Topology nodes = topology_of(Cluster::load("ideal-node8"), contiguous_placement(16));
  CHECK(slowest(nodes, 0, 7) == 450e9);
  CHECK(latency_us(nodes, 0, 7) == 1);
  CHECK(slowest(nodes, 7, 8) == 50e9);
  CHECK(latency_us(nodes, 7, 8) == 2);
  CHECK(nodes.links.size() == 16 * 4);

  const Topology tree = topology_of(Cluster::load("ideal-tree2"), contiguous_placement(32));
  CHECK(tree.route(0, 15).size() == 2);
  CHECK(tree.route(0, 16).size() == 4);
  CHECK(latency_us(tree, 0, 16) == 1);
  CHECK(names(tree, 0, 16) == "node 0 NIC 0 up, leaf 0 up, leaf 1 down, node 16 NIC 0 down");
  CHECK(tree.links.size() == 32 * 2 + 2 * 2);
  CHECK(tree.links.back().bandwidth.bytes_per_second == 16 * 25e9);
}

TEST_CASE("every shipped cluster connects any number of ranks in any place") {
  std::mt19937 random(7);
  for (const std::string& name : moesim::shipped_names("clusters")) {
    const Cluster cluster = Cluster::load(name);
    for (const int ranks : {1, 2, 3, 7, 8, 9, 13, 64, 75, 300}) {
      CAPTURE(name, ranks);
      check(topology_of(cluster, contiguous_placement(ranks)));
      check(topology_of(cluster, moesim::cluster::round_robin_placement(cluster, ranks)));
      std::vector<int> scattered(1000);
      std::iota(scattered.begin(), scattered.end(), 0);
      std::shuffle(scattered.begin(), scattered.end(), random);
      scattered.resize(static_cast<std::size_t>(ranks));
      const Topology topology = topology_of(cluster, scattered);
      check(topology);
      for (int rank = 1; rank < ranks; ++rank) {
        const bool inside = cluster.domain_of(scattered[0]) ==
                            cluster.domain_of(scattered[static_cast<std::size_t>(rank)]);
        CHECK(topology.same_domain(0, rank) == inside);
        CHECK(latency_us(topology, 0, rank) == latency_us(topology, rank, 0));
      }
    }
  }
}

TEST_CASE("rails: GPUs of one index meet at their leaf, others above it") {
  const Cluster cluster = Cluster::load("hgx-h100");  // 32 nodes below a leaf
  const Topology topology = topology_of(cluster, std::vector<int>{1, 8 + 1, 8 + 2, 32 * 8 + 1});
  CHECK(names(topology, 0, 1) == "node 0 NIC 1 up, node 1 NIC 1 down");
  CHECK(names(topology, 0, 2) == "node 0 NIC 1 up, leaf 1 up, leaf 2 down, node 1 NIC 2 down");
  CHECK(names(topology, 0, 3) == "node 0 NIC 1 up, leaf 1 up, leaf 9 down, node 32 NIC 1 down");
  CHECK(names(topology, 1, 2) == "GPU 9 NVLink up, GPU 10 NVLink down");
  CHECK(latency_us(topology, 0, 1) == Approx(cluster.nic_latency_us));
  CHECK(latency_us(topology, 0, 2) == Approx(cluster.nic_latency_us + 1));
}

TEST_CASE("leaves: nodes of one leaf meet there with all their NICs") {
  const Topology topology =
      topology_of(Cluster::load("generic-8x100g"), std::vector<int>{0, 8 + 1, 4 * 8});
  CHECK(names(topology, 0, 1) == "node 0 NIC 0 up, node 1 NIC 1 down");
  CHECK(names(topology, 0, 2) == "node 0 NIC 0 up, leaf 0 up, leaf 1 down, node 4 NIC 0 down");
}

TEST_CASE("a NIC that several GPUs share is one link") {
  const Topology topology = topology_of(Cluster::load("pcie-l40s"), contiguous_placement(12));
  CHECK(topology.outer.port_up[0] == topology.outer.port_up[1]);
  CHECK(topology.outer.port_up[1] != topology.outer.port_up[2]);
  CHECK(names(topology, 0, 8) == "node 0 NIC 0 up, node 1 NIC 0 down");
  // Pairs below one host bridge use their ports alone.
  CHECK(names(topology, 0, 1) == "GPU 0 PCIe up, GPU 1 PCIe down");
  CHECK(names(topology, 0, 2) ==
        "GPU 0 PCIe up, host bridge 0 up, host bridge 1 down, GPU 2 PCIe down");
}

TEST_CASE("several NICs of one GPU are one port of their sum") {
  const Topology topology = topology_of(changed("dgx-a100", "\"per_node\": 8", "\"per_node\": 16"),
                                        std::vector<int>{3, 9});
  CHECK(slowest(topology, 0, 1) == Approx(50e9 * 0.95));
  CHECK(names(topology, 0, 1) == "node 0 NIC 6 up, leaf 3 up, leaf 1 down, node 1 NIC 2 down");
}

TEST_CASE("a domain may be larger than a node, and its last one partial") {
  const Topology topology = topology_of(Cluster::load("gb200-nvl72"), contiguous_placement(75));
  CHECK(topology.same_domain(0, 71));
  CHECK_FALSE(topology.same_domain(71, 72));
  CHECK(names(topology, 0, 71) == "GPU 0 NVLink up, GPU 71 NVLink down");
  CHECK(names(topology, 0, 74) == "node 0 NIC 0 up, leaf 0 up, leaf 2 down, node 18 NIC 2 down");
}

TEST_CASE("link bandwidths are line rates times the chosen efficiency") {
  const Cluster cluster = Cluster::load("hgx-h100");
  const std::vector<int> gpus = contiguous_placement(9);
  for (const LinkRate rate : {LinkRate::low, LinkRate::median, LinkRate::high}) {
    const Topology topology = topology_of(cluster, gpus, rate);
    const double nic = rate == LinkRate::low    ? cluster.nic_efficiency_low
                       : rate == LinkRate::high ? cluster.nic_efficiency_high
                                                : cluster.nic_efficiency;
    const auto& of = cluster.domain.efficiency;
    const double inside = rate == LinkRate::low    ? of.low
                          : rate == LinkRate::high ? of.high
                                                   : of.value;
    CHECK(slowest(topology, 0, 8) == Approx(50e9 * nic));
    CHECK(slowest(topology, 0, 7) == Approx(450e9 * inside));
  }
}

TEST_CASE("planes that no two ranks use have no links") {
  const Cluster cluster = Cluster::load("dgx-a100");
  CHECK(topology_of(cluster, contiguous_placement(8)).outer.port_up.empty());
  CHECK(topology_of(cluster, contiguous_placement(8)).links.size() == 16);
  CHECK(topology_of(cluster, std::vector<int>{0, 8}).inner.port_up.empty());
  CHECK(topology_of(cluster, std::vector<int>{5}).links.empty());
}

TEST_CASE("a placement that the cluster does not have is refused with its key") {
  CHECK_THROWS_WITH(
      topology_of(changed("dgx-a100", "\"gpus_per_node\"", "\"nodes\": 2, \"gpus_per_node\""),
                  contiguous_placement(17)),
      ContainsSubstring("changed.json: /nodes: rank 16"));
  CHECK_THROWS_WITH(topology_of(Cluster::load("dgx-a100"), std::vector<int>{0, 0}),
                    ContainsSubstring("ranks 0 and 1 are both on GPU 0"));
}
