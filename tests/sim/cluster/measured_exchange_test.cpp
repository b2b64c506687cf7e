#include "sim/cluster/measured_exchange.hpp"

#include <cmath>
#include <string>

#include "sim/base/file.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/base/shipped.hpp"
#include "sim/cluster/cluster.hpp"
#include "tests/support/catch.hpp"

using moesim::Document;
using moesim::cluster::Cluster;
using moesim::cluster::MeasuredExchange;
using moesim::cluster::MeasuredOperation;

namespace {

// dgx-a100 (nodes of 8 GPUs) with that text as its list of exchanges; the figures are made up.
Cluster with(const std::string& exchanges) {
  std::string text = moesim::read_file(moesim::find_document("clusters", "dgx-a100"));
  const std::string key = "\"gpus_per_node\": 8,";
  return Cluster::read(Document::parse(
      text.replace(text.find(key), key.size(), key + "\"exchanges\": [" + exchanges + "],"),
      "mine.json"));
}

const std::string curve =
    R"("origin": "measured: made up", "bytes": [1024, 4096, 8192], "time_us": [20, 40, 60])";

std::string exchange(const std::string& op, int nodes, int gpus, const std::string& rest) {
  return "{\"op\": \"" + op + "\", \"nodes\": " + std::to_string(nodes) +
         ", \"gpus\": " + std::to_string(gpus) + ", " + rest + "}";
}

}  // namespace

TEST_CASE("measured exchanges are found by operation, nodes, GPUs and library") {
  const Cluster cluster =
      with(exchange("all-to-all", 2, 16, curve + R"(, "library": "NCCL 2.20.5")") + "," +
           exchange("all-to-all", 2, 16, curve + R"(, "library": "NCCL 2.27.3")") + "," +
           exchange("all-reduce", 2, 16, curve) + "," + exchange("send-receive", 2, 2, curve));
  REQUIRE(cluster.exchanges.size() == 4);
  const auto* newest = cluster.measured(MeasuredOperation::all_to_all, 2, 16);
  REQUIRE(newest != nullptr);
  CHECK(newest->library == "NCCL 2.27.3");
  CHECK(newest->origin == "measured: made up");
  CHECK(cluster.measured(MeasuredOperation::all_to_all, 2, 16, "NCCL 2.20.5") ==
        &cluster.exchanges[0]);
  CHECK(cluster.measured(MeasuredOperation::all_reduce, 2, 16)->library.empty());
  CHECK(cluster.measured(MeasuredOperation::send_receive, 2, 2) != nullptr);
  CHECK(cluster.measured(MeasuredOperation::all_to_all, 2, 8) == nullptr);
  CHECK(cluster.measured(MeasuredOperation::all_to_all, 4, 16) == nullptr);
  CHECK(cluster.measured(MeasuredOperation::all_gather, 2, 16) == nullptr);
  CHECK(cluster.measured(MeasuredOperation::all_to_all, 2, 16, "NCCL 9") == nullptr);
  CHECK(Cluster::load("dgx-a100").exchanges.empty());
}

TEST_CASE("a measured time between sizes lies on the straight line through both") {
  const Cluster cluster =
      with(exchange("all-to-all", 2, 16, curve + R"(, "time_us_p05": [18, 38, 57],
                    "time_us_p95": [30, 44, 66])"));
  const MeasuredExchange& measured = cluster.exchanges.at(0);
  CHECK(measured.at(1024).time_us == Approx(20));
  CHECK(measured.at(8192).time_us == Approx(60));
  // A third of the way in bytes, and likewise of the quantiles.
  CHECK(measured.at(2048).time_us == Approx(20 + 20 / 3.0));
  CHECK(measured.at(2048).p05_us == Approx(18 + 20 / 3.0));
  CHECK(measured.at(2048).p95_us == Approx(30 + 14 / 3.0));
  CHECK(measured.at(2048).beyond == 1);
  // Halfway in logarithms: the power law has the geometric mean.
  CHECK(measured.at(2048).curved_us == Approx(std::sqrt(20 * 40.0)));
  CHECK(measured.at(2048).octaves == Approx(1));
  CHECK(measured.at(4096).curved_us == Approx(40));
  CHECK(measured.at(4096).octaves == 0);
  // Below: latency. Beyond: 20 us more for each further 4,096 bytes, with the last point's spread.
  CHECK(measured.at(256).time_us == Approx(20));
  CHECK(measured.at(256).p95_us == Approx(30));
  CHECK(measured.at(256).beyond == Approx(4));
  CHECK(measured.at(16384).time_us == Approx(60 + 2 * 20));
  CHECK(measured.at(16384).p95_us == Approx(100 * 1.1));
  CHECK(measured.at(16384).beyond == Approx(2));
}

TEST_CASE("noise in the last piece does not run away beyond it") {
  // Falling: half of what a byte of the last transfer took, 60 / 8192 us.
  const Cluster falls = with(exchange(
      "all-gather", 1, 8, R"("origin": "measured", "bytes": [4096, 8192], "time_us": [64, 60])"));
  CHECK(falls.exchanges[0].at(16384).time_us == Approx(60 + 30));
  CHECK(falls.exchanges[0].at(8192).p05_us == Approx(60));
  // Steeper than through the origin (60 / 8192): no more than the last transfer as a whole.
  const Cluster rises = with(exchange(
      "all-gather", 1, 8, R"("origin": "measured", "bytes": [4096, 8192], "time_us": [20, 60])"));
  CHECK(rises.exchanges[0].at(16384).time_us == Approx(120));
}

TEST_CASE("a contradictory measured exchange is refused with file and key") {
  const auto refused = [](const std::string& exchanges, const std::string& part) {
    CHECK_THROWS_WITH(with(exchanges),
                      ContainsSubstring("mine.json: /exchanges") && ContainsSubstring(part));
  };
  const auto with_curve = [](const std::string& bytes, const std::string& times) {
    return exchange(
        "all-to-all", 2, 16,
        R"("origin": "measured", "bytes": [)" + bytes + R"(], "time_us": [)" + times + "]");
  };
  refused(exchange("all-to-all", 3, 16, curve), "0/gpus: 16 GPUs cannot be spread evenly over 3");
  refused(exchange("all-to-all", 2, 32, curve), "0/gpus: 32 GPUs on 2 nodes, but a node has 8");
  refused(exchange("all-to-all", 0, 16, curve), "0/nodes");
  refused(exchange("all-to-all", 1, 1, curve), "0/gpus");
  refused(exchange("all2all", 2, 16, curve), "0/op");
  refused(exchange("all-to-all", 2, 16, curve) + "," + exchange("all-to-all", 2, 16, curve),
          "1: all-to-all of 16 GPUs on 2 nodes with no library stated is there twice");
  refused(with_curve("4096, 1024", "1, 2"), "0/bytes: 1024 bytes: sizes are above 0 and ascend");
  refused(with_curve("1024, 1024", "1, 2"), "0/bytes");
  refused(with_curve("1024", "1"), "minItems 2");
  refused(with_curve("1024, 4096", "1, 2, 3"), "0/time_us: 3 times of 2 sizes");
  refused(with_curve("1024, 4096", "1, 0"), "0/time_us");
  refused(exchange("all-to-all", 2, 16, curve + R"(, "time_us_p05": [1, 2, 3])"),
          "0: give both time_us_p05 and time_us_p95");
  refused(exchange("all-to-all", 2, 16, curve + R"(, "time_us_p05": [21, 38, 57],
                   "time_us_p95": [30, 44, 66])"),
          "0: 1024 bytes: time_us_p05 and time_us_p95 must enclose time_us");
  refused(exchange("all-to-all", 2, 16, R"("origin": "guessed", "bytes": [1, 2],
                   "time_us": [1, 2])"),
          "0/origin");
}

TEST_CASE("a measured exchange needs the nodes and NICs of its cluster") {
  const auto one_node = [](int nodes, const std::string& more) {
    return Cluster::read(Document::parse(
        R"({"format": "moesim cluster 2", "name": "n", "source": "s", "gpus_per_node": 8,
            "domain": {"kind": "NVLink", "gpus": 8, "gb_per_s": {"value": 1, "origin": "assumed"},
              "efficiency": {"value": 1, "low": 1, "high": 1, "origin": "assumed"},
              "latency_us": {"value": 1, "origin": "assumed"}}, )" +
            more + R"("exchanges": [)" + exchange("all-to-all", nodes, 8, curve) + "]}",
        "one.json"));
  };
  CHECK(one_node(1, "").exchanges.size() == 1);
  CHECK_THROWS_WITH(
      one_node(2, "\"nodes\": 1, "),
      ContainsSubstring("one.json: /exchanges/0/nodes: 2 nodes, but the cluster has"));
  CHECK_THROWS_WITH(one_node(2, ""), ContainsSubstring("which no NIC connects"));
}
