#include "sim/network/ports/node_crossing.hpp"

#include <algorithm>
#include <cmath>

#include "tests/support/catch.hpp"

namespace moesim::network {
namespace {

using profile::Collective;

CrossingLoad ring_load(double buffer, int nodes) {
  const int ranks = 8 * nodes;
  CrossingLoad load;
  load.kind = Collective::all_gather;
  load.ranks = ranks;
  load.domains = nodes;
  load.per_domain = 8;
  load.buffer_bytes = buffer;
  load.nic_bytes = buffer * (ranks - 1) / ranks / 8;
  return load;
}

// On NICs of 50 GB/s of which a stream reaches 0.95, beside no time inside.
double fastest_us(const CrossingLoad& load) {
  double fastest = INFINITY;
  for (const CrossingPlan& plan : crossing_plans(load, {10, 1, true})) {
    if (std::string(plan.name) == "ring, LL") continue;  // its start is what a profile measured
    const double stream_us = std::max(plan.nic_bytes / (50e3 * 0.95 * plan.share), plan.least_us);
    fastest = std::min(fastest, plan.start_us + stream_us);
  }
  return fastest;
}

}  // namespace

TEST_CASE("rings across nodes meet SimAI's published ratios without a fit") {
  // aliyun/SimAI (Apache-2.0), nic_ratio: of the line rate, by nodes of 8 and bytes; GPU unnamed.
  struct Row {
    int nodes;
    double mib, ratio, within;
  };
  for (const Row& row : {Row{2, 16, 0.32, 0.10},
                         {2, 512, 0.92, 0.02},
                         {2, 4096, 0.95, 0.02},
                         {4, 16, 0.24, 0.12},
                         {4, 128, 0.67, 0.03},
                         {4, 1024, 0.93, 0.04},
                         {32, 128, 0.205, 0.06},
                         {32, 1024, 0.74, 0.12},
                         {64, 128, 0.107, 0.13},
                         {64, 256, 0.209, 0.05},
                         {64, 4096, 0.755, 0.13}}) {
    CAPTURE(row.nodes, row.mib);
    const double bytes = row.mib * 1024 * 1024;
    const CrossingLoad load = ring_load(bytes, row.nodes);
    const double published_us = load.nic_bytes / (50e3 * row.ratio);
    CHECK(std::abs(fastest_us(load) / published_us - 1) < row.within);
  }
}

TEST_CASE("a collective's ways between nodes") {
  CrossingLoad load = ring_load(1e9, 4);
  load.kind = Collective::all_reduce;
  load.nic_bytes *= 2;
  load.tree_nic_bytes = tree_turns(4) * 1e9 / 8;
  const auto plans = crossing_plans(load, {10, 1, false});
  REQUIRE(plans.size() == 4);
  // 28 steps inside and 3 between, twice.
  CHECK(plans[1].start_us == Approx(8.4 + 2 * (28 * 3.4 + 3 * 14)));
  // LL: 21 steps more than one node has, and latencies; at most 20.4 GB/s busbw.
  CHECK(plans[0].start_us == Approx(2 * (21 * 0.6 * 1.8 + 3 * 10)));
  CHECK(plans[0].least_us == Approx(2 * 1e9 * 31 / 32 / 20.4e3));
  // A tree of 4 nodes: two levels up and down, and the chain of 8 GPUs.
  CHECK(plans[3].start_us == Approx(8.4 + 2 * 7 * 4 + 4 * 14));
  CHECK(plans[3].nic_bytes == load.tree_nic_bytes);
  // The chain passes all of the buffer up and down, the measured ring 7/8 of it twice.
  CHECK(plans[3].inside_bytes == Approx(8.0 / 7));
  CHECK(plans[2].inside_bytes == Approx(8.0 / 7));
  CHECK(crossing_plans(load, {10, 1, true})[3].inside_bytes == 1);
  // The switch reduces: no chain.
  CHECK(crossing_plans(load, {10, 1, true})[3].start_us == Approx(4 * 14));
  // Four times the start of an all-to-all, twice that of rings, but no more bytes.
  CHECK(crossing_plans(load, {10, 4, false})[1].start_us == Approx(2 * plans[1].start_us));
  CHECK(crossing_plans(load, {10, 4, false})[1].nic_bytes == plans[1].nic_bytes);
}

TEST_CASE("the busiest domain of two complementary trees") {
  // Edges of NCCL's btree (0 - 2 - 1, 2 - 3, ...) and of its mirror or shift; half a buffer goes up
  // each edge and half down.
  CHECK(tree_turns(2) == 1);    // 1 + 1 neighbours
  CHECK(tree_turns(3) == 1.5);  // 2 + 1
  CHECK(tree_turns(4) == 2);    // 3 + 1
  CHECK(tree_turns(64) == 2);
}

TEST_CASE("the start of an all-to-all grows with peers and bytes") {
  CrossingLoad load;
  load.ranks = 16;
  load.domains = 2;
  load.per_domain = 8;
  load.peers = 8;
  const auto start = [&](double nic_bytes, int peers) {
    load.nic_bytes = nic_bytes;
    load.peers = peers;
    const auto plans = crossing_plans(load, {10, 1, true});
    REQUIRE(plans.size() == 1);
    CHECK(plans[0].beside == Beside::after);
    return plans[0].start_us;
  };
  CHECK(start(0, 8) == Approx(10 + 1.5 + 8));
  CHECK(start(0, 56) == Approx(10 + 1.5 + 56));
  CHECK(start(4e6, 8) == Approx(19.5 + 47.5));
  CHECK(start(1e12, 8) == Approx(19.5 + 95).epsilon(1e-4));
}

TEST_CASE("ideal links have no software") {
  CrossingLoad load = ring_load(1e9, 4);
  const auto plans = crossing_plans(load, {2, 0, true});
  REQUIRE(plans.size() == 1);
  CHECK(plans[0].beside == Beside::together);
  CHECK(plans[0].start_us == Approx(3 * 2));
  CHECK(plans[0].share == 1);
  // An all-reduce among 4 nodes: 3/4 of the buffer out of each, twice.
  CrossingLoad reduce = ring_load(1e9, 4);
  reduce.kind = Collective::all_reduce;
  reduce.nic_bytes *= 2;
  CHECK(crossing_plans(reduce, {2, 0, true})[0].nic_bytes == Approx(2 * 0.75 * 1e9 / 8));
}

}  // namespace moesim::network
