#include "sim/profile/moe_exchange_law.hpp"

#include <cmath>
#include <vector>

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::profile;

namespace {

constexpr DispatchGroup one_node = {8, 8};
constexpr DispatchGroup two_nodes = {16, 8};
constexpr MoeTraffic traffic = {256, 8};

// Nothing costs but what a test sets.
StageCost free_cost() {
  StageCost cost;
  cost.fixed_us = 20;
  return cost;
}

double time_us(const StageCost& cost, const DispatchLoad& load, const DispatchGroup& group = {8, 8},
               int sms = 1) {
  return stage_us(cost, group, load, {1000, 1e12, 1e12, 0, sms});
}

}  // namespace

TEST_CASE("the groups that a token meets follow from drawing without repetition") {
  // One expert per token meets one group; all experts meet all groups.
  CHECK(distinct_places({256, 1, 0}, 8) == Approx(1));
  CHECK(distinct_places({8, 8, 0}, 8) == Approx(8));
  // Two of four experts in two groups: the second lies in the other group in 2 of 3 cases.
  CHECK(distinct_places({4, 2, 0}, 2) == Approx(1 + 2.0 / 3));
}

TEST_CASE("a row per node is copied for each rank, and staged for each node or copied twice") {
  const double ranks = distinct_places(traffic, 16);
  const double nodes = distinct_places(traffic, 2);
  const DispatchLoad there =
      balanced_load(SentOnce::per_node, DispatcherStage::dispatch, traffic, two_nodes, 100);
  CHECK(there.copies == Approx(100 * (ranks + nodes)));
  CHECK(there.link_rows == Approx(100 * ranks * 7 / 8));
  CHECK(there.nic_rows == Approx(100 * nodes / 2));
  CHECK(there.expert_rows == Approx(100 * 16 * 8 / 256.0));
  const DispatchLoad back =
      balanced_load(SentOnce::per_node, DispatcherStage::combine, traffic, two_nodes, 100);
  CHECK(back.copies == Approx(100 * 2 * ranks));
  const DispatchLoad inside =
      balanced_load(SentOnce::per_node, DispatcherStage::combine, traffic, one_node, 100);
  CHECK(inside.copies == Approx(100 * distinct_places(traffic, 8)));
  CHECK(inside.nic_rows == 0);
}

TEST_CASE("a token that is limited to some nodes meets these alone") {
  // 8 nodes of 8 GPUs with 256 experts; 4 nodes hold 128 on 32 GPUs. Each has one of the token's
  // experts, for which it was kept; the other 4 are any of the other 124.
  const MoeTraffic limited = {256, 8, 8, 4};
  const DispatchLoad load =
      balanced_load(SentOnce::per_node, DispatcherStage::dispatch, limited, {64, 8}, 100);
  const double nodes = 4;
  const double ranks =
      64 * 0.5 * (1 - 28 / 32.0 * (120 * 119 * 118 * 117) / (124.0 * 123 * 122 * 121));
  CHECK(load.nic_rows == Approx(100 * nodes * 7 / 8));  // one of 8 is its own
  CHECK(load.copies == Approx(100 * (nodes + ranks)));
  CHECK(
      load.nic_rows <
      balanced_load(SentOnce::per_node, DispatcherStage::dispatch, traffic, {64, 8}, 100).nic_rows);
  // As many as there are limit nothing.
  CHECK(balanced_load(SentOnce::per_node, DispatcherStage::dispatch, {256, 8, 0, 2, 2}, two_nodes,
                      100)
            .nic_rows ==
        balanced_load(SentOnce::per_node, DispatcherStage::dispatch, traffic, two_nodes, 100)
            .nic_rows);
}

TEST_CASE("places that a token of a group-limited router meets") {
  // The means of 200,000 tokens with normal scores: groups by the sum of their two best (V3), by
  // their best (V2); places of several groups, of one, of a part of one, across the border of two.
  struct Expected {
    MoeTraffic traffic;
    int places;
    double met;
  };
  const MoeTraffic v3 = {256, 8, 8, 4};
  const MoeTraffic v2 = {160, 6, 8, 3};
  for (const Expected& expected :
       {Expected{v3, 4, 3.126}, Expected{v3, 8, 3.971}, Expected{v3, 16, 5.717},
        Expected{v3, 64, 7.488}, Expected{v2, 4, 2.572}, Expected{v2, 8, 2.995},
        Expected{v2, 5, 3.018}, Expected{v2, 20, 4.753}, Expected{v2, 32, 5.197}}) {
    CAPTURE(expected.traffic.experts, expected.places);
    CHECK(distinct_places(expected.traffic, expected.places) == Approx(expected.met).epsilon(0.01));
  }
}

TEST_CASE("a token meets no more places with groups than without") {
  for (const int kept : {1, 2, 3, 4, 5, 6, 7, 8}) {
    for (const int places : {2, 4, 8, 16, 64}) {
      CAPTURE(kept, places);
      CHECK(distinct_places({256, 8, 0, 8, kept}, places) <=
            distinct_places(traffic, places) * (1 + 1e-12));
    }
  }
  // Simulated: 5.31.
  CHECK(distinct_places({256, 8, 0, 8, 7}, 8) == Approx(5.31).epsilon(0.01));
}

TEST_CASE("a row goes to all slices of an expert, which lie in one domain") {
  MoeTraffic sliced = traffic;
  sliced.slices = 2;
  // 32 GPUs with 256 experts in two halves: 16 pairs of GPUs hold 16 experts each.
  const double pairs = distinct_places(traffic, 16);
  const double nodes = distinct_places(traffic, 4);
  const DispatchLoad there =
      balanced_load(SentOnce::per_node, DispatcherStage::dispatch, sliced, {32, 8}, 100);
  CHECK(there.copies == Approx(100 * (2 * pairs + nodes)));
  CHECK(there.link_rows == Approx(100 * 2 * pairs * 7 / 8));
  CHECK(there.nic_rows == Approx(100 * nodes * 3 / 4));  // a node once, whatever it holds
  CHECK(there.expert_rows == Approx(100 * 32 * 8 / 256.0));
  const DispatchLoad apart =
      balanced_load(SentOnce::per_expert, DispatcherStage::dispatch, sliced, {32, 8}, 100);
  CHECK(apart.copies == Approx(100 * 2 * 8));
  sliced.slices = 3;
  CHECK_THROWS_WITH(
      balanced_load(SentOnce::per_node, DispatcherStage::dispatch, sliced, {24, 8}, 100),
      ContainsSubstring("all slices of an expert in one domain"));
}

TEST_CASE("a row per expert travels by itself, over the NIC to other domains") {
  const DispatchLoad load =
      balanced_load(SentOnce::per_expert, DispatcherStage::dispatch, traffic, two_nodes, 100);
  CHECK(load.copies == 800);
  CHECK(load.link_rows == Approx(800 * 7 / 16.0));
  CHECK(load.nic_rows == 400);
  // Without NVLink all but its own go through the NIC.
  const DispatchLoad nics =
      balanced_load(SentOnce::per_expert, DispatcherStage::dispatch, traffic, {16, 1}, 100);
  CHECK(nics.link_rows == 0);
  CHECK(nics.nic_rows == Approx(800 * 15 / 16.0));
}

TEST_CASE("what is not spread evenly has no balanced load") {
  CHECK_THROWS_WITH(
      balanced_load(SentOnce::per_node, DispatcherStage::dispatch, {250, 8, 0}, one_node, 1),
      ContainsSubstring("250 experts on 8 GPUs"));
  CHECK_THROWS_AS(
      balanced_load(SentOnce::per_node, DispatcherStage::dispatch, {240, 8, 0}, {12, 8}, 1), Error);
}

TEST_CASE("one part alone takes its own time after the fixed one") {
  const DispatchLoad load = {100, 400, 300, 200, 50};
  CHECK(time_us(free_cost(), load) == Approx(20));
  StageCost copying = free_cost();
  copying.token_ns = 10;           // 1 us of 100 tokens
  copying.copy_ns = 20;            // 8 us of 400 copies
  copying.sm_bytes_per_us = 20e3;  // 400 x 1000 B at 20 kB/us: 20 us
  CHECK(time_us(copying, load) == Approx(20 + 29));
  CHECK(time_us(copying, load, one_node, 4) == Approx(20 + 29 / 4.0));
  StageCost filling = free_cost();
  filling.fill_us = 10;  // 100 of 164
  filling.doubling_us = 3;
  CHECK(time_us(filling, load) == Approx(20 + 10 * 100 / 164.0 + 2 * 3));
  StageCost fullest = free_cost();
  fullest.expert_row_ns = 100;
  CHECK(time_us(fullest, load) == Approx(20 + 5));
  copying.slow_sms = {{12, 8}};
  CHECK(time_us(copying, load, one_node, 12) == Approx(20 + 29 / 8.0));
  CHECK(time_us(copying, load, one_node, 16) == Approx(20 + 29 / 16.0));
  // 300 kB at 10 kB/us; 200 kB at 5 kB/us, or half a microsecond for each of 200.
  CHECK(stage_us(free_cost(), one_node, {100, 0, 300, 0, 0}, {1000, 10e3, 1, 0, 1}) == Approx(50));
  CHECK(stage_us(free_cost(), one_node, {100, 0, 0, 200, 0}, {1000, 1, 5e3, 0, 1}) == Approx(60));
  CHECK(stage_us(free_cost(), one_node, {100, 0, 0, 200, 0}, {1000, 1, 5e3, 0.5, 1}) ==
        Approx(120));
  // Two equal parts are slower than each by the sixth root of two.
  CHECK(stage_us(free_cost(), one_node, {100, 0, 300, 150, 0}, {1000, 10e3, 5e3, 0, 1}) ==
        Approx(20 + 30 * std::pow(2, 1 / 6.0)));
}

TEST_CASE(
    "shipped dispatchers answer for their machines, more slowly with fewer SMs or more rows") {
  const Dispatcher deepep = Dispatcher::load("deepep");
  const DispatchRates rates = {450e3, 50e3};
  const auto time = [&](double tokens, int sms, const DispatchGroup& group) {
    const DispatchLoad load =
        balanced_load(deepep.sent, DispatcherStage::dispatch, traffic, group, tokens);
    return dispatch_time(deepep, {"NVIDIA H100 80GB HBM3", DispatcherStage::dispatch, group, load,
                                  7392, rates, sms});
  };
  double before = 0;
  for (const double tokens : {1.0, 64.0, 512.0, 4096.0, 32768.0}) {
    const Estimate estimate = time(tokens, 24, two_nodes);
    CHECK(estimate.time_us > before);
    CHECK(estimate.time_us_p05 < estimate.time_us);
    CHECK(estimate.time_us < estimate.time_us_p95);
    before = estimate.time_us;
  }
  CHECK(time(4096, 4, two_nodes).time_us > 3 * time(4096, 24, two_nodes).time_us);
  CHECK(time(4096, 24, two_nodes).time_us > time(4096, 24, one_node).time_us);
  // aiconfigurator's table has 749 us for 2 nodes and 24 SMs.
  CHECK(time(4096, 24, two_nodes).time_us == Approx(749).epsilon(0.1));
}

TEST_CASE("a dispatcher refuses what it does not do") {
  const DispatchLoad load = {100, 100, 100, 100, 100};
  const Dispatcher one_sided = Dispatcher::load("trtllm");
  CHECK_THROWS_WITH(
      dispatch_time(
          one_sided,
          {"NVIDIA GB200", DispatcherStage::dispatch, two_nodes, load, 1000, {900e3, 50e3}, 1}),
      ContainsSubstring("inside one NVLink domain"));
  const Dispatcher hybrid = Dispatcher::load("hybridep");
  DispatchRates rates = {450e3, 50e3, Transport::proxy};
  CHECK_THROWS_WITH(dispatch_time(hybrid, {"NVIDIA H100", DispatcherStage::dispatch, two_nodes,
                                           load, 1000, rates, 16}),
                    ContainsSubstring("EFA"));
  CHECK_THROWS_WITH(
      dispatch_time(
          hybrid, {"NVIDIA L40S", DispatcherStage::dispatch, one_node, load, 1000, {0, 50e3}, 16}),
      ContainsSubstring("NVLink"));
}

TEST_CASE("a number of SMs that was not measured may copy as slowly as the slowest") {
  Dispatcher deepep = Dispatcher::load("deepep");
  const DispatchLoad load =
      balanced_load(deepep.sent, DispatcherStage::dispatch, traffic, two_nodes, 131072);
  const auto time = [&](int sms) {
    return dispatch_time(
        deepep,
        {"NVIDIA H100", DispatcherStage::dispatch, two_nodes, load, 7392, {450e3, 50e3}, sms});
  };
  // With many tokens and 10 SMs copies are nearly all of the time: 12 / 8.6 of it, with the growth
  // of errors over log2(12 / 10) = 0.263 factors of two, and the factor's 1.12.
  const double root = std::hypot(std::log(12 / 8.6), 0.04 * std::sqrt(0.263), std::log(1.12));
  CHECK(time(10).time_us_p95 / time(10).time_us == Approx(std::exp(root)).epsilon(0.02));
  CHECK(time(10).time_us_p05 / time(10).time_us ==
        Approx(std::exp(-std::hypot(0.04 * std::sqrt(0.263), std::log(0.9)))).epsilon(0.02));
  // Measured, or a document that does not say: the factor alone.
  CHECK(time(16).time_us_p95 / time(16).time_us < 1.15);
  deepep.measured[1].sms.clear();
  CHECK(time(10).time_us_p95 / time(10).time_us < 1.15);
}

TEST_CASE("an unknown way to the NIC widens the band to the slower one") {
  const Dispatcher deepep = Dispatcher::load("deepep");
  const DispatchLoad load =
      balanced_load(deepep.sent, DispatcherStage::dispatch, traffic, {32, 8}, 32768);
  DispatchRates rates = {450e3, 50e3};
  const auto time = [&] {
    return dispatch_time(
        deepep, {"NVIDIA H100", DispatcherStage::dispatch, {32, 8}, load, 7392, rates, 24});
  };
  const Estimate known = time();
  rates.transport_known = false;
  const Estimate unknown = time();
  CHECK(unknown.time_us == known.time_us);
  CHECK(unknown.time_us_p95 > 1.2 * known.time_us_p95);
  rates.transport = Transport::proxy;
  CHECK(time().time_us > known.time_us);
}

TEST_CASE("inside a domain the copies that leave a rank add to the fixed part by their cubes") {
  // Top-8 meets all of up to 8 ranks: 1, 3 and 7 copies leave. Fixed 0.02, a copy 0.01 us/token.
  const auto per_token = [](double copies) {
    return std::cbrt(std::pow(0.02, 3) + std::pow(0.01 * copies, 3));
  };
  const auto curve = [&](double floor, double copies) {
    return SizeCurve({1, 65536}, {floor, floor + 65535 * per_token(copies)});
  };
  const SizeCurve eight = among_more_ranks(curve(10, 1), 2, curve(11, 3), 4, 8, 8);
  CHECK(eight.time_us(1) == Approx(12));  // the floor rises by 1 us per doubling
  CHECK(eight.time_us(4096) == Approx(12 + 4095 * per_token(7)));
  CHECK_THROWS_AS(among_more_ranks(curve(10, 1), 2, curve(11, 3), 4, 4, 8), Error);
}
