#include "sim/cluster/cluster.hpp"

#include <string>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/base/shipped.hpp"
#include "sim/cluster/measured_between.hpp"
#include "tests/support/catch.hpp"

using moesim::Document;
using moesim::UsageError;
using moesim::cluster::Cluster;

namespace {

std::string message_of(const std::string& from, const std::string& to) {
  std::string text = moesim::read_file(moesim::find_document("clusters", "dgx-a100"));
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  try {
    Cluster::read(Document::parse(text.replace(at, from.size(), to), "bad.json"));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

bool mentions(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("every shipped cluster loads and says where its efficiencies come from") {
  const auto names = moesim::shipped_names("clusters");
  REQUIRE(names.size() >= 10);
  for (const std::string& name : names) {
    CAPTURE(name);
    const Cluster cluster = Cluster::load(name);
    CHECK(cluster.name == name);
    CHECK(cluster.efficiency_origin.rfind("assumed", 0) == 0);
    CHECK(cluster.latency_origin.rfind("assumed", 0) == 0);
    const bool ideal = name.rfind("ideal-", 0) == 0;
    CHECK((cluster.nic_efficiency == 1) == ideal);
    if (cluster.gpus_per_domain == 1) continue;
    CHECK((cluster.domain.efficiency.value == 1) == ideal);
    CHECK(cluster.domain.port > cluster.nic_per_gpu);
  }
}

TEST_CASE("line rates of the shipped clusters are the vendors'") {
  struct Expected {
    const char* name;
    int node, domain;
    double nic_gb_per_s, domain_gb_per_s;  // per GPU and direction
  };
  for (const Expected& expected : {Expected{"dgx-a100", 8, 8, 25, 300},
                                   {"hgx-h100", 8, 8, 50, 450},
                                   {"hgx-h200", 8, 8, 50, 450},
                                   {"hgx-b200", 8, 8, 50, 900},
                                   {"hgx-b300", 8, 8, 100, 900},
                                   {"hgx-b300-400g", 8, 8, 50, 900},
                                   {"aws-p5", 8, 8, 50, 450},
                                   {"aws-p5en", 8, 8, 50, 450},
                                   {"aws-p6-b200", 8, 8, 50, 900},
                                   {"aws-p6-b300", 8, 8, 100, 900},
                                   {"gb200-nvl72", 4, 72, 50, 900},
                                   {"gb300-nvl72", 4, 72, 100, 900},
                                   {"pcie-l40s", 8, 8, 12.5, 32},
                                   {"generic-8x100g", 8, 8, 12.5, 300},
                                   {"ideal-node8", 8, 8, 50, 450}}) {
    CAPTURE(expected.name);
    const Cluster cluster = Cluster::load(expected.name);
    CHECK(cluster.gpus_per_node == expected.node);
    CHECK(cluster.gpus_per_domain == expected.domain);
    CHECK(cluster.nic_per_gpu.gb_per_s() == Approx(expected.nic_gb_per_s));
    CHECK(cluster.domain.port.gb_per_s() == Approx(expected.domain_gb_per_s));
    CHECK(cluster.max_gpus() == 0);
  }
  const Cluster node = Cluster::load("dgx-a100");
  CHECK(node.node_of(7) == 0);
  CHECK(node.node_of(8) == 1);
}

TEST_CASE("the NICs of a node are shared by its GPUs") {
  const auto with_nics = [](int nics) {
    std::string text = moesim::read_file(moesim::find_document("clusters", "dgx-a100"));
    const std::string key = "\"per_node\": 8";
    return Cluster::read(Document::parse(
        text.replace(text.find(key), key.size(), "\"per_node\": " + std::to_string(nics)), "nics"));
  };
  CHECK(with_nics(2).nic_per_gpu.gb_per_s() == Approx(6.25));
  CHECK(with_nics(2).nic_of(3) == 0);
  CHECK(with_nics(2).nic_of(4) == 1);
  CHECK(with_nics(2).nic_of(8 + 7) == 1);
  CHECK(with_nics(16).nic_per_gpu.gb_per_s() == Approx(50));
  CHECK(with_nics(16).nic_of(3) == 6);
  CHECK(with_nics(16).ports_per_node() == 8);
  CHECK_THROWS_WITH(with_nics(3), ContainsSubstring("nics: /nic/per_node: 3 NICs"));
}

TEST_CASE("the way up of a switch follows from its oversubscription") {
  // A rail leaf of a DGX H100 unit has one port of each of 32 nodes below it.
  CHECK(Cluster::load("hgx-h100").levels.at(0).uplink.gb_per_s() == Approx(32 * 50));
  // A leaf of the generic cluster has all 8 ports of 4 nodes.
  CHECK(Cluster::load("generic-8x100g").levels.at(0).uplink.gb_per_s() == Approx(4 * 8 * 12.5));
  CHECK(Cluster::load("ideal-tree2").levels.at(0).uplink.bytes_per_second == 16 * 25e9);

  // Two levels: 4 rail leafs of 2 nodes at 2:1, then a spine of 4 nodes at 3:1 of what the leafs
  // send up. 2 ports of 50 GB/s below a leaf give 50 up; the 4 nodes of a spine send 2 x 4 x 50.
  const char* const levels = R"([
    {"name": "leaf", "nodes": 2, "oversubscription": {"value": 2, "origin": "assumed"},
     "latency_us": {"value": 1, "origin": "assumed"}},
    {"name": "spine", "nodes": 4, "oversubscription": {"value": 3, "origin": "assumed"},
     "latency_us": {"value": 1, "origin": "assumed"}}])";
  const std::string text = std::string(R"({"format": "moesim cluster 2", "name": "n", "source": "s",
    "gpus_per_node": 4,
    "nic": {"per_node": 4, "gbit_per_s": {"value": 400, "origin": "assumed"},
            "efficiency": {"value": 1, "low": 1, "high": 1, "origin": "assumed"},
            "latency_us": {"value": 1, "origin": "assumed"}},
    "fabric": {"layout": "rails", "levels": )") +
                           levels + "}}";
  const Cluster two = Cluster::read(Document::parse(text, "two"));
  REQUIRE(two.levels.size() == 2);
  CHECK(two.levels[0].uplink.gb_per_s() == Approx(50));
  CHECK(two.levels[1].uplink.gb_per_s() == Approx(2 * 4 * 50 / 3.0));
}

TEST_CASE("how long exchanges take to start between nodes is the law's, or the document's") {
  CHECK(Cluster::load("dgx-a100").nic_start.value == 1);
  CHECK(Cluster::load("dgx-a100").nic_start.low == 0.5);
  CHECK(Cluster::load("dgx-a100").nic_start.high == 1.9);
  CHECK(Cluster::load("ideal-switch").nic_start.value == 0);
  std::string text = moesim::read_file(moesim::find_document("clusters", "dgx-a100"));
  const std::string key = "\"per_node\": 8,";
  text.insert(text.find(key),
              R"("start": {"value": 2, "low": 1.5, "high": 3, "origin": "measured"},)");
  const Cluster own = Cluster::read(Document::parse(text, "own"));
  CHECK(own.nic_start.value == 2);
  CHECK(own.nic_start.low == 1.5);
  CHECK(own.nic_start.high == 3);
}

TEST_CASE("a malformed cluster names the file and the key") {
  CHECK(mentions(message_of("\"gpus_per_node\": 8,", ""), "gpus_per_node"));
  CHECK(mentions(message_of("\"gpus_per_node\": 8", "\"gpus_per_node\": 0"),
                 "bad.json: /gpus_per_node"));
  CHECK(
      mentions(message_of("\"gpus\": 8", "\"gpus\": 12"),
               "bad.json: /domain/gpus: a domain of 12 GPUs does not consist of whole nodes of 8"));
  CHECK(
      mentions(message_of("\"value\": 0.95", "\"value\": 1.2"), "bad.json: /nic/efficiency/value"));
  CHECK(mentions(message_of("\"low\": 0.7,", "\"low\": 0.96,"),
                 "bad.json: /nic/efficiency: low and high must enclose value"));
  const auto start = [](const std::string& figures) {
    return message_of("\"per_node\": 8,",
                      "\"per_node\": 8, \"start\": {" + figures + ", \"origin\": \"measured\"},");
  };
  CHECK(mentions(start("\"value\": 2, \"low\": 2.5, \"high\": 3"),
                 "bad.json: /nic/start: low and high must enclose value"));
  CHECK(mentions(message_of("\"value\": 200", "\"value\": \"fast\""),
                 "bad.json: /nic/gbit_per_s/value"));
  CHECK(mentions(message_of("\"value\": 200", "\"value\": 0"), "bad.json: /nic/gbit_per_s/value"));
  CHECK(
      mentions(message_of("\"value\": 300", "\"value\": -1"), "bad.json: /domain/gb_per_s/value"));
  CHECK(mentions(message_of("\"origin\": \"assumed", "\"origin\": \"guessed"),
                 "bad.json: /nic/efficiency/origin"));
  CHECK(mentions(message_of("\"nodes\": 20,",
                            "\"nodes\": 20, \"gb_per_s\": "
                            "{\"value\": 1, \"origin\": \"assumed\"},"),
                 "bad.json: /fabric/levels/0: give either gb_per_s"));
  CHECK(mentions(message_of("moesim cluster 2", "moesim cluster 9"), "bad.json: /format"));
  CHECK(mentions(message_of("moesim cluster 2", "moesim cluster 1"),
                 "bad.json: /format: 'moesim cluster 1' is read no longer"));
}

TEST_CASE("a cluster of neither domain nor NICs does not connect") {
  CHECK_THROWS_WITH(
      Cluster::read(Document::parse(R"({"format": "moesim cluster 2", "name": "n", "source": "s",
                                        "gpus_per_node": 8})",
                                    "lone.json")),
      ContainsSubstring("lone.json: /: GPUs reach each other through a domain or NICs"));
}

TEST_CASE("an exchange crosses domains where its nodes hold more GPUs than a domain") {
  using moesim::cluster::crosses_domains;
  const Cluster nodes = Cluster::load("hgx-h100"), rack = Cluster::load("gb200-nvl72");
  CHECK(!crosses_domains(nodes, 1));
  CHECK(crosses_domains(nodes, 2));
  CHECK(!crosses_domains(rack, 18));
  CHECK(crosses_domains(rack, 19));
  Cluster alone = nodes;
  alone.gpus_per_domain = 1;  // every message takes a NIC
  CHECK(crosses_domains(alone, 1));
}

TEST_CASE("an unknown cluster lists the shipped ones") {
  CHECK_THROWS_WITH(Cluster::load("dgx-a10"), ContainsSubstring("unknown cluster 'dgx-a10'") &&
                                                  ContainsSubstring("hgx-h200"));
}
