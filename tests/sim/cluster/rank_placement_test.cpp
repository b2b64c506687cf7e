#include "sim/cluster/rank_placement.hpp"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using moesim::UsageError;
using moesim::cluster::check_placement;
using moesim::cluster::Cluster;
using moesim::cluster::contiguous_placement;
using moesim::cluster::even_placement;
using moesim::cluster::on_parts_of_domains;
using moesim::cluster::parse_placement;
using moesim::cluster::round_robin_placement;
using moesim::cluster::usual_ranks_per_domain;

TEST_CASE("contiguous ranks fill nodes one after another") {
  CHECK(contiguous_placement(3) == std::vector<int>{0, 1, 2});
}

TEST_CASE("even ranks take equal parts of racks, of whole nodes if it can be") {
  const auto shipped = std::make_shared<const Cluster>(Cluster::load("gb200-nvl72"));
  const Cluster& rack = *shipped;
  for (const auto& [ranks, each] : std::vector<std::pair<int, int>>{{8, 72},
                                                                    {72, 72},
                                                                    {144, 72},
                                                                    {128, 64},
                                                                    {512, 64},
                                                                    {1024, 64},
                                                                    {100, 50},
                                                                    {84, 42},
                                                                    {251, 63}}) {
    CAPTURE(ranks);
    CHECK(usual_ranks_per_domain(rack, ranks) == each);
  }
  CHECK(even_placement(rack, 144) == contiguous_placement(144));
  const std::vector<int> halves = even_placement(rack, 128);
  CHECK(halves.at(63) == 63);
  CHECK(halves.at(64) == 72);
  CHECK(halves.at(127) == 72 + 63);
  for (int ranks = 1; ranks <= 200; ++ranks) check_placement(rack, even_placement(rack, ranks));
  // A cluster of 20 nodes ends in its second rack.
  Cluster small = rack;
  small.nodes = 20;
  CHECK(even_placement(small, 80) == contiguous_placement(80));
  // Nodes of 8 are filled one after another.
  const Cluster nodes = Cluster::load("dgx-a100");
  CHECK(even_placement(nodes, 13) == contiguous_placement(13));
  CHECK(parse_placement("even", rack, 128, "x") == halves);
  // Where rank r is to be GPU r.
  CHECK(on_parts_of_domains(shipped, 144) == shipped);
  CHECK(on_parts_of_domains(shipped, 100) == shipped);
  CHECK(on_parts_of_domains(shipped, 512)->gpus_per_domain == 64);
}

TEST_CASE("round-robin ranks alternate between just enough nodes") {
  const Cluster cluster = Cluster::load("dgx-a100");
  CHECK(round_robin_placement(cluster, 5) == std::vector<int>{0, 1, 2, 3, 4});
  // 10 ranks need two nodes: even ranks on the first, odd ones on the second.
  CHECK(round_robin_placement(cluster, 10) == std::vector<int>{0, 8, 1, 9, 2, 10, 3, 11, 4, 12});
}

TEST_CASE("no number of ranks puts two on one GPU, or more on a node than it holds") {
  const Cluster cluster = Cluster::load("gb200-nvl72");
  for (int ranks = 1; ranks <= 200; ++ranks) {
    const std::vector<int> gpus = round_robin_placement(cluster, ranks);
    check_placement(cluster, gpus);
    const int nodes = (ranks + 3) / 4;
    CHECK(*std::max_element(gpus.begin(), gpus.end()) < nodes * 4);
    CHECK(std::set<int>(gpus.begin(), gpus.end()).size() == gpus.size());
  }
}

TEST_CASE("a placement is a word or a list") {
  const Cluster cluster = Cluster::load("dgx-a100");
  CHECK(parse_placement("contiguous", cluster, 2, "x") == std::vector<int>{0, 1});
  CHECK(parse_placement("round-robin", cluster, 9, "x").at(1) == 8);
  CHECK(parse_placement("8,0,3", cluster, 3, "x") == std::vector<int>{8, 0, 3});
  for (const char* bad : {"", "0,", "0 1", "-1", "0,x", "rail", "1.5"}) {
    CAPTURE(bad);
    CHECK_THROWS_WITH(parse_placement(bad, cluster, 1, "--placement"),
                      ContainsSubstring("--placement: '") && ContainsSubstring("no placement"));
  }
  CHECK_THROWS_WITH(parse_placement("roundrobin", cluster, 1, "x"),
                    ContainsSubstring("did you mean 'round-robin'?"));
  CHECK_THROWS_WITH(parse_placement("0,1", cluster, 3, "--placement"),
                    ContainsSubstring("2 GPUs are given for 3 ranks"));
}

TEST_CASE("a job of no ranks has no place, whatever the placement") {
  Cluster cluster = Cluster::load("dgx-a100");
  cluster.nodes = 2;
  for (const char* const text : {"even", "contiguous", "round-robin"}) {
    CHECK_THROWS_AS(parse_placement(text, cluster, 0, "--placement"), UsageError);
  }
}

TEST_CASE("ranks without a place are named") {
  Cluster cluster = Cluster::load("dgx-a100");
  cluster.file = "mine.json";
  CHECK_THROWS_AS(check_placement(cluster, {}), UsageError);
  CHECK_THROWS_WITH(check_placement(cluster, std::vector<int>{0, 3, -1}),
                    ContainsSubstring("mine.json: rank 2 has no place"));
  CHECK_THROWS_WITH(check_placement(cluster, std::vector<int>{4, 3, 4}),
                    ContainsSubstring("ranks 0 and 2 are both on GPU 4"));
  cluster.nodes = 2;
  check_placement(cluster, contiguous_placement(16));
  CHECK_THROWS_WITH(check_placement(cluster, contiguous_placement(17)),
                    ContainsSubstring("mine.json: /nodes: rank 16 would sit on GPU 16"));
  cluster.nodes = 0;
  cluster.nics_per_node = 0;
  CHECK_THROWS_WITH(
      check_placement(cluster, contiguous_placement(9)),
      ContainsSubstring("mine.json: /nic: rank 8") && ContainsSubstring("first domain of 8 GPUs"));
}
