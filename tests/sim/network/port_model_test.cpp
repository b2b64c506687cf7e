#include "sim/network/ports/port_model.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "sim/base/error.hpp"
#include "sim/base/random.hpp"
#include "sim/network/topology/fabric.hpp"
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

TEST_CASE("the error bar of two levels covers one after the other") {
  const PortModel model = a100_model();
  const profile::Profile profile = profile::Profile::load("a100-sxm-80gb");
  const cluster::Cluster cluster = cluster::Cluster::load("dgx-a100");
  const double bytes = 1 << 26;
  const profile::Estimate estimate = model.price(Collective::all_gather, gpus(16), bytes);
  const double inside_us = profile.collective(Collective::all_gather, 8, bytes).time_us;
  const double across_us =
      cluster.nic_latency_us + bytes / 2 / 8 / cluster.effective_nic().bytes_per_second * 1e6;
  CHECK(estimate.time_us == Approx(std::max(inside_us, across_us)));
  CHECK(estimate.time_us_p95 >= (inside_us + across_us) * (1 - 1e-12));
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
  // 12 GPUs, 8 and 4 to a node: each of the 4 has 8/12 of its buffer for the other node; a
  // gather brings 8/12 of the buffer to the 4 NICs of the second node.
  const cluster::Cluster cluster = cluster::Cluster::load("dgx-a100");
  const double bytes = 1e9;
  const double nic_us = bytes / cluster.effective_nic().bytes_per_second * 1e6;
  const PortModel model = a100_model();
  CHECK(model.price(Collective::all_to_all, gpus(12), bytes).time_us ==
        Approx(cluster.nic_latency_us + 8.0 / 12 * nic_us));
  CHECK(model.price(Collective::all_gather, gpus(12), bytes).time_us ==
        Approx(cluster.nic_latency_us + 8.0 / 12 / 4 * nic_us));
}

TEST_CASE("a GPU alone on its node gets everybody else's blocks through one NIC") {
  // 9 GPUs: 8/9 of 64 MiB over 50 GB/s * 0.85.
  const PortModel model{std::make_shared<profile::Profile>(profile::Profile::load("h100-sxm")),
                        std::make_shared<cluster::Cluster>(cluster::Cluster::load("hgx-h100"))};
  const double bytes = 64 << 20;
  for (const Collective kind : {Collective::all_gather, Collective::reduce_scatter}) {
    CHECK(model.price(kind, gpus(9), bytes).time_us > 8.0 / 9 * bytes / 42.5e3);
  }
}

// What must pass the NICs of a domain whatever the algorithm, in bytes of a buffer of `bytes`.
double must_enter_or_leave(Collective kind, double members, double ranks, double bytes) {
  const double others = (ranks - members) / ranks * bytes;
  switch (kind) {
    case Collective::all_to_all:
      return members * others;
    case Collective::all_reduce:  // a sum of all others' parts in, or its own part out, and back
      return bytes;
    default:
      return std::max(others, members / ranks * bytes);
  }
}

TEST_CASE("no collective beats the NICs of any node", "[property]") {
  const auto profile = std::make_shared<profile::Profile>(profile::Profile::load("a100-sxm-80gb"));
  for (const char* name : {"dgx-a100", "hgx-h100", "generic-8x100g", "ideal-node8"}) {
    const auto cluster = std::make_shared<cluster::Cluster>(cluster::Cluster::load(name));
    const PortModel model(profile, cluster);
    for (std::uint32_t round = 0; round < 200; ++round) {
      Stream draw({.purpose = Purpose::test_data, .replica = round, .layer = 101});
      const double density = 0.05 + 0.9 * draw.uniform();
      std::vector<int> members;
      for (int gpu = 0; gpu < 8 * cluster->gpus_per_node; ++gpu) {
        if (draw.uniform() < density) members.push_back(gpu);
      }
      const Span span = span_of(members, *cluster);
      // The profile has curves of 2, 4 and 8 GPUs.
      const int fullest = span.largest_share;
      if (span.domains < 2 || (fullest != 1 && fullest != 2 && fullest != 4 && fullest != 8)) {
        continue;
      }
      const double bytes = 1e5 + 1e8 * draw.uniform();
      std::map<int, int> domains;
      std::map<int, std::set<int>> nics;
      for (const int gpu : members) {
        ++domains[cluster->domain_of(gpu)];
        nics[cluster->domain_of(gpu)].insert(cluster->nic_of(gpu));
      }
      const double nic = cluster->nic.bytes_per_second *
                         std::max(1, cluster->nics_per_node / cluster->gpus_per_node);
      for (const Collective kind : {Collective::all_to_all, Collective::all_reduce,
                                    Collective::all_gather, Collective::reduce_scatter}) {
        const profile::Estimate estimate = model.price(kind, members, bytes);
        for (const auto& [domain, count] : domains) {
          const double pass =
              must_enter_or_leave(kind, count, static_cast<double>(members.size()), bytes) /
              (nic * static_cast<double>(nics[domain].size())) * 1e6;
          INFO(name << ", round " << round << ", domain " << domain << ", " << name_of(kind));
          CHECK(estimate.time_us >= pass / cluster->nic_efficiency * (1 - 1e-12));
          CHECK(estimate.time_us_p05 >= pass / cluster->nic_efficiency_high * (1 - 1e-12));
        }
      }
    }
  }
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
