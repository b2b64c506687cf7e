#include "sim/network/ports/port_model.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>

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

TEST_CASE("an all-to-all across nodes: the part inside, the start, the bytes on the NIC") {
  const cluster::Cluster cluster = cluster::Cluster::load("dgx-a100");
  const profile::Profile profile = profile::Profile::load("a100-sxm-80gb");
  const double bytes = 1e9;
  // 32 GPUs on 4 nodes: of the buffer's 32 blocks 8 stay inside and 24 are bound for other nodes.
  const double inside_us = profile.collective(Collective::all_to_all, 8, bytes / 4).time_us;
  const double nic_bytes = 24.0 / 32 * bytes;
  const double start_us = cluster.nic_latency_us + 1.5 + 24 + 95 * nic_bytes / (nic_bytes + 4e6);
  const double nic_us = nic_bytes / (cluster.effective_nic().bytes_per_second * 0.95) * 1e6;
  const auto crossed = a100_model().across(Collective::all_to_all, gpus(32), bytes);
  CHECK(crossed.estimate.time_us == Approx(inside_us + start_us + nic_us));
  CHECK(crossed.inside_us == Approx(inside_us));
  CHECK(crossed.start_us == Approx(start_us));
  CHECK(crossed.stream_us == Approx(nic_us));
  CHECK(a100_model().price(Collective::all_to_all, gpus(32), bytes).time_us ==
        crossed.estimate.time_us);
}

TEST_CASE("groups that exchange at the same time share the NICs of a node") {
  const auto profile = std::make_shared<profile::Profile>(profile::Profile::load("a100-sxm-80gb"));
  const auto with_nics = [&](int number, double times_rate) {
    auto cluster = std::make_shared<cluster::Cluster>(cluster::Cluster::load("dgx-a100"));
    cluster->nics_per_node = number;
    cluster->nic.bytes_per_second *= times_rate;
    cluster->nic_per_gpu.bytes_per_second *= times_rate * number / 8;
    return PortModel(profile, cluster);
  };
  const double bytes = 1 << 28;
  for (const Collective kind :
       {Collective::all_to_all, Collective::all_reduce, Collective::reduce_scatter}) {
    for (const int stride : {1, 4, 8}) {  // 8, 2 and 1 members on each of 4 nodes
      const std::vector<int> group = gpus(32 / stride, stride);
      // As many GPUs have as much NIC: half the NICs of twice the rate change nothing.
      const double all_us = with_nics(8, 1).price(kind, group, bytes, Senders::all_below).time_us;
      for (const int number : {4, 2, 1}) {
        CHECK(
            with_nics(number, 8.0 / number).price(kind, group, bytes, Senders::all_below).time_us ==
            Approx(all_us));
      }
      // An eighth of the NICs carries what all carried.
      const PortModel one = with_nics(1, 1);
      CHECK(one.across(kind, group, bytes, std::nullopt, Senders::all_below).stream_us ==
            Approx(8 * with_nics(8, 1)
                           .across(kind, group, bytes, std::nullopt, Senders::all_below)
                           .stream_us));
      // Alone, a group has the whole NIC that its members are behind.
      CHECK(one.price(kind, group, bytes, Senders::all_below).time_us >=
            one.price(kind, group, bytes).time_us);
    }
  }
  // A job with one GPU on each node: its group has the whole NIC, with two each group has half.
  const PortModel one = with_nics(1, 1);
  const auto stream_us = [&](Senders senders) {
    return one.across(Collective::all_reduce, gpus(4, 8), bytes, std::nullopt, senders).stream_us;
  };
  CHECK(stream_us(Senders{1}) == stream_us(Senders::members));
  CHECK(stream_us(Senders{2}) == Approx(2 * stream_us(Senders::members)));
  // All GPUs of the nodes: nobody else shares their NICs.
  CHECK(
      with_nics(2, 1).price(Collective::all_reduce, gpus(32), bytes, Senders::all_below).time_us ==
      with_nics(2, 1).price(Collective::all_reduce, gpus(32), bytes).time_us);
}

TEST_CASE("rings put nearly the whole buffer through the NICs of every node") {
  const cluster::Cluster cluster = cluster::Cluster::load("dgx-a100");
  const double bytes = 4e9;
  const double rate = cluster.effective_nic().bytes_per_second / 1e6;
  const PortModel model = a100_model();
  // 31 of 32 parts over 8 NICs, 28 steps inside nodes and 3 between.
  for (const Collective kind : {Collective::all_gather, Collective::reduce_scatter}) {
    const auto crossed = model.across(kind, gpus(32), bytes);
    CHECK(crossed.algorithm == std::string("ring, Simple"));
    CHECK(crossed.estimate.time_us == Approx(8.4 + 28 * 3.4 + 3 * 14 + bytes * 31 / 32 / 8 / rate));
  }
  // One GPU per node: trees, 3/4 of the buffer out and in through one GPU's share of the NICs.
  const auto tree = model.across(Collective::all_reduce, gpus(4, 8), bytes);
  CHECK(tree.algorithm == std::string("ring, Simple"));
  CHECK(tree.estimate.time_us == Approx(8.4 + 6 * 14 + bytes * 2 * 3 / 4 / rate));
}

TEST_CASE("the error bar across nodes adds its independent parts in quadrature") {
  cluster::Cluster cluster = cluster::Cluster::load("dgx-a100");
  const auto profile = std::make_shared<profile::Profile>(profile::Profile::load("a100-sxm-80gb"));
  const auto price = [&](double bytes) {
    return PortModel(profile, std::make_shared<cluster::Cluster>(cluster))
        .price(Collective::all_to_all, gpus(32), bytes);
  };
  // Large: the NICs' efficiency; small: the start.
  const profile::Estimate large = price(1e10);
  CHECK(large.origin == profile::Origin::assumed);
  const double nic_us = 0.75e10 / (25e3 * 0.95 * 0.95);
  const double of_nics_us = nic_us * (cluster.nic_efficiency / cluster.nic_efficiency_low - 1);
  CHECK(large.time_us_p95 - large.time_us ==
        Approx(std::hypot(of_nics_us, 0.08 * large.time_us)).epsilon(0.01));
  const profile::Estimate small = price(1024);
  const double start_us = cluster.nic_latency_us + 1.5 + 24;
  CHECK(small.time_us_p95 - small.time_us >= 0.9 * start_us);
  CHECK(small.time_us_p05 <= small.time_us - 0.5 * start_us);
  // A start that is known leaves the rest.
  cluster.nic_start = {1, 1, 1, "measured"};
  CHECK(price(1024).time_us_p95 - price(1024).time_us < 0.3 * start_us);
}

TEST_CASE("the upper end of an all-reduce reaches to another algorithm") {
  cluster::Cluster cluster = cluster::Cluster::load("hgx-h100");
  const auto profile = std::make_shared<profile::Profile>(profile::Profile::load("h100-sxm"));
  const auto across = [&](double bytes) {
    return PortModel(profile, std::make_shared<cluster::Cluster>(cluster))
        .across(Collective::all_reduce, gpus(16), bytes);
  };
  // On 2 nodes the tree over NVLS hides the NICs; a ring without it does not.
  const double bytes = 1 << 30;
  const double ring_us = 8.4 + 2 * (14 * 3.4 + 14) + 2 * 15.0 / 16 * bytes / 8 / (50e3 * 0.95);
  const auto large = across(bytes);
  CHECK(large.algorithm == std::string("tree over NVLS, Simple"));
  CHECK(large.next == std::string("ring, Simple"));
  CHECK(large.estimate.time_us_p95 > ring_us);
  const double time_us = large.estimate.time_us;
  const double share = (1.8 - ring_us / time_us) / (1.8 - 1.3);  // 1.31 times as long: 98 %
  const double slower_nics_us = share * (ring_us - 8.4 - 2 * (14 * 3.4 + 14)) *
                                (cluster.nic_efficiency / cluster.nic_efficiency_low - 1);
  const double other_us = share * (ring_us - time_us);
  CHECK(large.estimate.time_us_p95 - time_us >= std::hypot(other_us, slower_nics_us));
  CHECK(large.estimate.time_us_p95 - time_us <=
        1.1 * std::hypot(other_us, slower_nics_us, 0.08 * time_us));
  CHECK(large.estimate.time_us_p05 > 0.9 * time_us);
  // Other exchanges have one family of algorithms, and public runs.
  const auto gathered = PortModel(profile, std::make_shared<cluster::Cluster>(cluster))
                            .across(Collective::all_gather, gpus(16), bytes);
  CHECK(gathered.next == std::string());
  // A log says which one runs.
  cluster::MeasuredExchange log;
  log.operation = cluster::MeasuredOperation::all_reduce;
  log.nodes = 2;
  log.gpus = 16;
  log.origin = "measured: a.log";
  log.bytes = {bytes / 2, bytes};
  log.time_us = {time_us / 2, time_us};
  cluster.exchanges = {log};
  CHECK(across(bytes).estimate.time_us_p95 == Approx(1.06 * time_us));
}

// With NVLS off trees have chains of GPUs; rings over many nodes, and LL of many bytes, take so
// long that nothing chooses them.
TEST_CASE("the upper end of an all-reduce does not reach to what no tuner chooses") {
  const auto profile = std::make_shared<profile::Profile>(profile::Profile::load("h100-sxm"));
  const auto cluster = std::make_shared<cluster::Cluster>(cluster::Cluster::load("hgx-h100"));
  for (const int ranks : {64, 256}) {
    for (const double mib : {4, 16, 64}) {
      CAPTURE(ranks, mib);
      const auto crossed = PortModel(profile, cluster)
                               .across(Collective::all_reduce, gpus(ranks), mib * 1024 * 1024);
      const profile::Estimate& estimate = crossed.estimate;
      CHECK(crossed.algorithm == std::string("tree over NVLS, Simple"));
      CHECK(crossed.next == std::string("tree, Simple"));
      CHECK(estimate.time_us_p95 < 1.6 * estimate.time_us);
    }
  }
}

// Which algorithm is fastest, and which another one may be, changes with all of these.
TEST_CASE("both ends rise with bytes, nodes, slower NICs and slower NVLink", "[property]") {
  constexpr double rounding = 1e-9;
  const std::vector<double> times_nvlink = {2, 1, 0.85, 0.7, 0.35};
  const std::vector<double> times_nic = {4, 1.4, 1, 0.85, 0.5, 0.25};
  const std::vector<int> nodes = {2, 3, 4, 6, 8, 12, 16, 32, 48, 64};
  constexpr int sizes = 2 * 24 + 1;  // from 1 KiB to 16 GiB, 2 per octave
  const auto not_earlier = [](const profile::Estimate& easier, const profile::Estimate& harder) {
    CHECK(harder.time_us_p05 >= easier.time_us_p05 * (1 - rounding));
    CHECK(harder.time_us_p95 >= easier.time_us_p95 * (1 - rounding));
  };
  for (const auto& [name, on] :
       {std::pair{"a100-sxm-80gb", "dgx-a100"}, std::pair{"h100-sxm", "hgx-h100"}}) {
    const auto profile = std::make_shared<const profile::Profile>(profile::Profile::load(name));
    for (const Collective kind : {Collective::all_reduce, Collective::all_gather}) {
      std::map<std::array<std::size_t, 4>, profile::Estimate> ends;
      for (std::size_t nvlink = 0; nvlink < times_nvlink.size(); ++nvlink) {
        for (std::size_t nic = 0; nic < times_nic.size(); ++nic) {
          auto cluster = std::make_shared<cluster::Cluster>(cluster::Cluster::load(on));
          cluster->domain.port.bytes_per_second *= times_nvlink[nvlink];
          cluster->nic.bytes_per_second *= times_nic[nic];
          cluster->nic_per_gpu.bytes_per_second *= times_nic[nic];
          const PortModel model(profile, cluster);
          for (std::size_t count = 0; count < nodes.size(); ++count) {
            const std::vector<int> members = gpus(8 * nodes[count]);
            for (std::size_t size = 0; size < sizes; ++size) {
              CAPTURE(name, name_of(kind), times_nvlink[nvlink], times_nic[nic], nodes[count],
                      size);
              const profile::Estimate here =
                  model.price(kind, members, 1024 * std::exp2(static_cast<double>(size) / 2));
              ends[{nvlink, nic, count, size}] = here;
              CHECK(here.time_us_p05 <= here.time_us);
              CHECK(here.time_us_p95 >= here.time_us);
              if (nvlink > 0) not_earlier(ends.at({nvlink - 1, nic, count, size}), here);
              if (nic > 0) not_earlier(ends.at({nvlink, nic - 1, count, size}), here);
              if (count > 0) not_earlier(ends.at({nvlink, nic, count - 1, size}), here);
              if (size > 0) not_earlier(ends.at({nvlink, nic, count, size - 1}), here);
            }
          }
        }
      }
    }
  }
}

// Up to 256 nodes, with finer steps of the rate.
TEST_CASE("slower NICs and more GPUs end no all-reduce earlier", "[property]") {
  constexpr double rounding = 1e-9;
  for (const auto& [name, on] :
       {std::pair{"a100-sxm-80gb", "dgx-a100"}, std::pair{"h100-sxm", "hgx-h100"},
        std::pair{"b200-sxm", "hgx-b200"}}) {
    const auto profile = std::make_shared<const profile::Profile>(profile::Profile::load(name));
    const auto price = [&, on = on](int ranks, double times_rate, double bytes) {
      auto cluster = std::make_shared<cluster::Cluster>(cluster::Cluster::load(on));
      cluster->nic.bytes_per_second *= times_rate;
      cluster->nic_per_gpu.bytes_per_second *= times_rate;
      return PortModel(profile, cluster).price(Collective::all_reduce, gpus(ranks), bytes);
    };
    for (const double mib : {1, 16, 64, 256, 1024, 4096}) {
      const double bytes = mib * 1024 * 1024;
      for (const int ranks : {16, 24, 64, 256}) {
        profile::Estimate slower = price(ranks, 0.25, bytes);
        for (double rate = 0.27; rate < 5; rate *= 1.07) {
          CAPTURE(name, mib, ranks, rate);
          const profile::Estimate faster = price(ranks, rate, bytes);
          CHECK(faster.time_us <= slower.time_us);
          CHECK(faster.time_us_p95 <= slower.time_us_p95 * (1 + rounding));
          slower = faster;
        }
      }
      profile::Estimate fewer = price(16, 1, bytes);
      for (int ranks = 24; ranks <= 2048; ranks += std::max(8, ranks / 48 * 8)) {
        CAPTURE(name, mib, ranks);
        const profile::Estimate more = price(ranks, 1, bytes);
        CHECK(more.time_us_p95 >= fewer.time_us_p95 * (1 - rounding));
        fewer = more;
      }
    }
  }
}

TEST_CASE("behind PCIe the bytes inside a node and on its NICs move at the same time") {
  const auto profile = std::make_shared<profile::Profile>(profile::Profile::load("l40s"));
  const auto cluster = std::make_shared<cluster::Cluster>(cluster::Cluster::load("pcie-l40s"));
  std::vector<int> members = {0, 1, 2, 3, 8, 9, 10, 11};
  const double bytes = 1 << 30;
  const auto crossed = PortModel(profile, cluster).across(Collective::all_to_all, members, bytes);
  const double first_us = profile->collective(Collective::all_to_all, 4, 1).time_us;
  CHECK(crossed.estimate.time_us ==
        Approx(crossed.start_us + first_us +
               std::max(crossed.inside_us - first_us, crossed.stream_us)));
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
  // 12 GPUs, 8 and 4 to a node: each of the 4 has 8/12 of its buffer for the other node; the rings
  // of a gather bring 11/12 of the buffer to the 4 NICs of the second node.
  const cluster::Cluster cluster = cluster::Cluster::load("dgx-a100");
  const double bytes = 1e9;
  const double nic_us = bytes / cluster.effective_nic().bytes_per_second * 1e6;
  const PortModel model = a100_model();
  CHECK(model.across(Collective::all_to_all, gpus(12), bytes).stream_us ==
        Approx(8.0 / 12 * nic_us / 0.95));
  CHECK(model.across(Collective::all_gather, gpus(12), bytes).stream_us ==
        Approx(11.0 / 12 / 4 * nic_us));
}

TEST_CASE("a GPU alone on its node gets everybody else's blocks through one NIC") {
  // 9 GPUs: 8/9 of 64 MiB over 50 GB/s * 0.95.
  const PortModel model{std::make_shared<profile::Profile>(profile::Profile::load("h100-sxm")),
                        std::make_shared<cluster::Cluster>(cluster::Cluster::load("hgx-h100"))};
  const double bytes = 64 << 20;
  for (const Collective kind : {Collective::all_gather, Collective::reduce_scatter}) {
    CHECK(model.price(kind, gpus(9), bytes).time_us > 8.0 / 9 * bytes / 47.5e3);
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
