#include "sim/cluster/cluster.hpp"

#include <string>

#include "sim/base/document.hpp"
#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/shipped.hpp"
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

TEST_CASE("every shipped cluster loads and says where its efficiency comes from") {
  const auto names = moesim::shipped_names("clusters");
  REQUIRE(names.size() >= 4);
  for (const std::string& name : names) {
    CAPTURE(name);
    const Cluster cluster = Cluster::load(name);
    CHECK(cluster.name == name);
    CHECK(cluster.effective_nic().bytes_per_second < cluster.nic_per_gpu.bytes_per_second);
    CHECK(cluster.efficiency_origin.rfind("assumed", 0) == 0);
    CHECK(cluster.latency_origin.rfind("assumed", 0) == 0);
  }
}

TEST_CASE("a DGX A100 has 25 GB/s of network per GPU, an H100 node twice that") {
  CHECK(Cluster::load("dgx-a100").nic_per_gpu.gb_per_s() == Approx(25));
  CHECK(Cluster::load("hgx-h100").nic_per_gpu.gb_per_s() == Approx(50));
  CHECK(Cluster::load("hgx-h200").nic_per_gpu.gb_per_s() == Approx(50));
  CHECK(Cluster::load("generic-8x100g").nic_per_gpu.gb_per_s() == Approx(12.5));
  const Cluster node = Cluster::load("dgx-a100");
  CHECK(node.node_of(7) == 0);
  CHECK(node.node_of(8) == 1);
}

TEST_CASE("the NICs of a node are shared by its GPUs") {
  std::string text = moesim::read_file(moesim::find_document("clusters", "dgx-a100"));
  text.replace(text.find("\"nics_per_node\": 8"), 18, "\"nics_per_node\": 2");
  CHECK(Cluster::read(Document::parse(text, "two")).nic_per_gpu.gb_per_s() == Approx(6.25));
}

TEST_CASE("a malformed cluster names the file and the key") {
  CHECK(mentions(message_of("\"gpus_per_node\": 8,", ""), "gpus_per_node"));
  CHECK(mentions(message_of("\"gpus_per_node\": 8", "\"gpus_per_node\": 0"),
                 "bad.json: /gpus_per_node"));
  CHECK(mentions(message_of("\"gpus_per_domain\": 8", "\"gpus_per_domain\": 3"),
                 "bad.json: /gpus_per_domain: NVLink domains of 3 GPUs do not fit nodes of 8"));
  CHECK(
      mentions(message_of("\"value\": 0.85", "\"value\": 1.2"), "bad.json: /nic_efficiency/value"));
  CHECK(mentions(message_of("\"nic_gbit_per_s\": 200", "\"nic_gbit_per_s\": \"fast\""),
                 "bad.json: /nic_gbit_per_s"));
  CHECK(mentions(message_of("\"origin\": \"assumed", "\"origin\": \"guessed"),
                 "bad.json: /nic_efficiency/origin"));
  CHECK(mentions(message_of("moesim cluster 1", "moesim cluster 9"), "bad.json: /format"));
}

TEST_CASE("an unknown cluster lists the shipped ones") {
  CHECK_THROWS_WITH(Cluster::load("dgx-a10"), ContainsSubstring("unknown cluster 'dgx-a10'") &&
                                                  ContainsSubstring("hgx-h200"));
}
