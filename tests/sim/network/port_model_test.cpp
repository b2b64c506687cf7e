#include "sim/network/port_model.hpp"

#include <numeric>

#include "sim/base/error.hpp"
#include "sim/network/fabric.hpp"
#include "tests/support/catch.hpp"

namespace moesim::network {
namespace {

using profile::Collective;

std::vector<int> gpus(int count, int stride = 1) {
  std::vector<int> list;
  for (int index = 0; index < count; ++index) list.push_back(index * stride);
  return list;
}

PortModel a100_model() {
  return {std::make_shared<profile::Profile>(profile::Profile::load("a100-sxm-80gb")),
          std::make_shared<cluster::Cluster>(cluster::Cluster::load("dgx-a100"))};
}

}  // namespace

TEST_CASE("inside a node an exchange costs what the profile says") {
  const profile::Profile profile = profile::Profile::load("a100-sxm-80gb");
  const PortModel model = a100_model();
  for (const Collective kind : {Collective::all_to_all, Collective::all_reduce,
                                Collective::all_gather, Collective::reduce_scatter}) {
    CHECK(model.price(kind, gpus(8), 1 << 26).time_us ==
          profile.collective(kind, 8, 1 << 26).time_us);
  }
}

TEST_CASE("across nodes the NIC port carries what leaves the node") {
  const cluster::Cluster cluster = cluster::Cluster::load("dgx-a100");
  const double bytes = 1e9;
  const double nic_us = bytes / cluster.effective_nic().bytes_per_second * 1e6;
  const double latency = cluster.nic_latency_us;
  const PortModel model = a100_model();
  // 32 GPUs on 4 nodes: of the buffer's 32 blocks 24 are bound for other nodes.
  CHECK(model.price(Collective::all_to_all, gpus(32), bytes).time_us ==
        Approx(latency + 24.0 / 32 * nic_us));
  // Rings of 4 nodes over a shard of 1/8: 3/4 of it out and in, twice for an all-reduce.
  CHECK(model.price(Collective::reduce_scatter, gpus(32), bytes).time_us >=
        Approx(3 * latency + 3.0 / 4 / 8 * nic_us));
  // One GPU per node: the whole buffer goes through one GPU's share of the NICs.
  CHECK(model.price(Collective::all_reduce, gpus(4, 8), bytes).time_us ==
        Approx(6 * latency + 2 * 3.0 / 4 * nic_us));
}

TEST_CASE("what crosses nodes is marked assumed and its error bar is the cluster's range") {
  const cluster::Cluster cluster = cluster::Cluster::load("dgx-a100");
  const profile::Estimate estimate = a100_model().price(Collective::all_to_all, gpus(32), 1e10);
  CHECK(estimate.origin == profile::Origin::assumed);
  CHECK(estimate.time_us_p95 / estimate.time_us ==
        Approx(cluster.nic_efficiency / cluster.nic_efficiency_low).epsilon(1e-3));
  CHECK(estimate.time_us_p05 / estimate.time_us ==
        Approx(cluster.nic_efficiency / cluster.nic_efficiency_high).epsilon(1e-3));
}

TEST_CASE("one GPU does not communicate") {
  CHECK_THROWS_AS(a100_model().price(Collective::all_to_all, gpus(1), 1e6), Error);
}

TEST_CASE("a span counts the domains and their fullest share") {
  const cluster::Cluster cluster = cluster::Cluster::load("dgx-a100");
  const std::vector<int> members = {0, 1, 2, 9, 17, 18};
  const Span span = span_of(members, cluster);
  CHECK(span.gpus == 6);
  CHECK(span.domains == 3);
  CHECK(span.largest_share == 3);
  CHECK(span.smallest_share == 1);
}

TEST_CASE("the node with the fewest members sends the most through each NIC") {
  // 12 GPUs, 8 and 4 to a node: each of the 4 has 8/12 of its buffer for the other node; a ring
  // brings half of the buffer to the 4 NICs of the second node.
  const cluster::Cluster cluster = cluster::Cluster::load("dgx-a100");
  const double bytes = 1e9;
  const double nic_us = bytes / cluster.effective_nic().bytes_per_second * 1e6;
  const PortModel model = a100_model();
  CHECK(model.price(Collective::all_to_all, gpus(12), bytes).time_us ==
        Approx(cluster.nic_latency_us + 8.0 / 12 * nic_us));
  CHECK(model.price(Collective::all_gather, gpus(12), bytes).time_us ==
        Approx(cluster.nic_latency_us + 1.0 / 2 / 4 * nic_us));
}

TEST_CASE("an idle fabric ends exchanges in the order of time, then of number") {
  IdleFabric fabric;
  CHECK_FALSE(fabric.next().has_value());
  fabric.begin(7, Picoseconds(0), Picoseconds(100));
  fabric.begin(3, Picoseconds(50), Picoseconds(50));
  fabric.begin(5, Picoseconds(60), Picoseconds(10));
  std::vector<int> order;
  for (; fabric.next(); fabric.take()) order.push_back(fabric.next()->exchange);
  CHECK(order == std::vector<int>{5, 3, 7});
}

}  // namespace moesim::network
