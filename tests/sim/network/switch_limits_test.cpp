#include "sim/network/ports/switch_limits.hpp"

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "sim/network/exchange/dispatch_place.hpp"
#include "sim/network/exchange/exchange_model.hpp"
#include "sim/profile/dispatcher.hpp"
#include "sim/profile/moe_exchange_law.hpp"
#include "sim/profile/profile.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::network;
using cluster::Cluster;
using profile::Collective;

namespace {

// DGX H100 at full efficiency: 8 rails of 50 GB/s, leafs of `below` nodes that have 1 / `over` of
// their bandwidth up.
Cluster tapered(int below, double over) {
  Cluster cluster = Cluster::load("hgx-h100");
  cluster.nic_efficiency = cluster.nic_efficiency_low = cluster.nic_efficiency_high = 1;
  cluster.levels[0].below = below;
  cluster.levels[0].uplink = Bandwidth(below * 50e9 / over);
  return cluster;
}

std::vector<int> first(int gpus) {
  std::vector<int> members(static_cast<std::size_t>(gpus));
  std::iota(members.begin(), members.end(), 0);
  return members;
}

// GB/s at which the ways up would carry one byte of the buffer.
double rate(Collective kind, int gpus, const Cluster& cluster) {
  return 1 / (us_per_byte_above(kind, first(gpus), cluster) * 1e3);
}

}  // namespace

TEST_CASE("switches without less bandwidth above limit nothing") {
  for (const Collective kind : {Collective::all_to_all, Collective::all_reduce}) {
    CHECK(us_per_byte_above(kind, first(512), tapered(32, 1)) == 0);
    CHECK(us_per_byte_above(kind, first(512), Cluster::load("hgx-h100")) == 0);
  }
  CHECK(dispatch_nic_rate(tapered(32, 1), {512, 8}) == 50e9);
}

TEST_CASE("an all-to-all passes the ways up with the blocks that leave the nodes below") {
  // Four nodes on leafs of two, 16 ranks of 32 below each group of leafs: 2 ranks below one leaf
  // get the blocks of 16 others, 32 / 32 of a buffer, at 2 x 50 / 4 GB/s.
  CHECK(rate(Collective::all_to_all, 32, tapered(2, 4)) == Approx(25 / (2 * 16 / 32.0)));
  // All below the same leafs: nothing passes, although destinations are on other rails (PXN).
  CHECK(us_per_byte_above(Collective::all_to_all, first(16), tapered(2, 4)) == 0);
  // Without NVLink blocks for other rails pass: of 16 ranks, 2 nodes of 8 rails, each of a leaf's 2
  // ranks gets those of 14 others, one domain each.
  Cluster without = tapered(2, 4);
  without.gpus_per_domain = 1;
  CHECK(rate(Collective::all_to_all, 16, without) == Approx(25 / (2 * 14 / 16.0)));
}

TEST_CASE("rings pass the ways up where they leave the nodes below") {
  // 8 rings, one per rail; each leaves a leaf of two nodes once: (P - 1) / P / 8 at 25 GB/s.
  const double part = 31.0 / 32 / 8;
  CHECK(rate(Collective::all_gather, 32, tapered(2, 4)) == Approx(25 / part));
  CHECK(rate(Collective::reduce_scatter, 32, tapered(2, 4)) == Approx(25 / part));
  CHECK(rate(Collective::all_reduce, 32, tapered(2, 4)) == Approx(25 / (2 * part)));
  // Large leafs have room for the one ring that leaves them.
  CHECK(rate(Collective::all_reduce, 512, tapered(32, 8)) == Approx(200 / (2 * 511.0 / 512 / 8)));
}

TEST_CASE("groups that exchange at the same time share the ways up") {
  Cluster leaves = tapered(1, 8);  // a leaf has all 8 NICs of one node: 50 GB/s up
  leaves.rails = false;
  leaves.levels[0].uplink = Bandwidth(50e9);
  const auto needed = [&](int stride, Senders senders) {
    std::vector<int> members;
    for (int gpu = 0; gpu < 64; gpu += stride) members.push_back(gpu);
    return us_per_byte_above(Collective::all_gather, members, leaves, senders);
  };
  // Eight groups of one GPU per node have an eighth each; alone a group has all.
  CHECK(needed(8, Senders::all_below) == Approx(8 * needed(8, Senders::members)));
  CHECK(needed(1, Senders::all_below) == Approx(needed(1, Senders::members)));
  // On rails each of these groups has leafs of its own.
  const Cluster rails = tapered(1, 8);
  std::vector<int> group = {0, 8, 16, 24};
  CHECK(us_per_byte_above(Collective::all_gather, group, rails, Senders::all_below) ==
        us_per_byte_above(Collective::all_gather, group, rails));
}

TEST_CASE("collectives are no faster than the ways up") {
  const auto profile = std::make_shared<const profile::Profile>(profile::Profile::load("h100-sxm"));
  const auto price = [&](const Cluster& cluster, Collective kind) {
    const ExchangeModel model(profile, std::make_shared<const Cluster>(cluster));
    return model.price(kind, first(512), 4e9).time_us;
  };
  for (const Collective kind : {Collective::all_reduce, Collective::all_gather,
                                Collective::reduce_scatter, Collective::all_to_all}) {
    CAPTURE(name_of(kind));
    const double alone = price(tapered(1, 1), kind);
    CHECK(price(tapered(32, 1), kind) == alone);
    const Cluster narrow = tapered(1, 8);
    const double above_us = us_per_byte_above(kind, first(512), narrow) * 4e9;
    CHECK(above_us > 2 * alone);
    CHECK(price(narrow, kind) == Approx(above_us + narrow.nic_latency_us));
  }
}

TEST_CASE("a dispatcher reaches no more of a NIC than a single stream") {
  Cluster cluster = Cluster::load("hgx-h100");
  const profile::Dispatcher deepep = profile::Dispatcher::load("deepep");
  const auto time = [&](double efficiency) {
    cluster.nic_efficiency = cluster.nic_efficiency_high = efficiency;
    const DispatchPlace place = dispatch_place("NVIDIA H100", cluster, 32);
    const profile::DispatcherStage stage = profile::DispatcherStage::dispatch;
    const profile::DispatchLoad load =
        profile::balanced_load(deepep.sent, stage, {256, 8, 0, 0}, place.group, 4096);
    return profile::dispatch_time(
        deepep, {"NVIDIA H100", stage, place.group, load, 14336, place.rates, 24});
  };
  CHECK(time(0.95).time_us == time(1).time_us);
  CHECK(time(0.3).time_us / time(0.6).time_us == Approx(2).epsilon(0.05));
  CHECK(time(0.3).time_us_p05 <= time(0.3).time_us);
}

TEST_CASE("a dispatcher's rows share the ways up of neighbours") {
  // 16 nodes below leafs of 4: 12 of the 15 other nodes are elsewhere; 50 / 8 GB/s up for each GPU.
  CHECK(dispatch_nic_rate(tapered(4, 8), {128, 8}) == Approx(50e9 / 8 * 15 / 12));
  CHECK(dispatch_nic_rate(tapered(16, 8), {128, 8}) == 50e9);
  // At 1.1 : 1 the NICs are narrower than what is left of the ways up.
  CHECK(dispatch_nic_rate(tapered(4, 1.1), {128, 8}) == 50e9);
  // A rack is one domain: leafs of 36 nodes hold two racks of 18.
  Cluster racks = Cluster::load("gb200-nvl72");
  racks.levels.resize(1);
  racks.rails = false;
  racks.levels[0].below = 36;
  racks.levels[0].uplink = Bandwidth(36 * 4 * racks.nic_per_gpu.bytes_per_second / 10);
  CHECK(dispatch_nic_rate(racks, {144, 72}) == racks.nic_per_gpu.bytes_per_second);
  CHECK(dispatch_nic_rate(racks, {288, 72}) ==
        Approx(racks.nic_per_gpu.bytes_per_second / 10 * 3 / 2));
}

TEST_CASE("messages of all GPUs to partners share the way up of their switch") {
  Cluster leaves = tapered(2, 8);  // two nodes of 8 NICs of 50 GB/s: 100 GB/s up
  leaves.rails = false;
  leaves.levels[0].uplink = Bandwidth(100e9);
  const auto slowest = [&](int senders, int distance) {
    std::vector<std::pair<int, int>> messages;
    for (int gpu = 0; gpu < senders; ++gpu) messages.emplace_back(gpu, gpu + distance);
    return message_nic_rate(leaves, messages);
  };
  CHECK(slowest(32, 8) == Approx(100e9 / 8));    // every second node sends out of its leaf
  CHECK(slowest(32, 16) == Approx(100e9 / 16));  // every node
  CHECK(slowest(1, 16) == 50e9);                 // no faster than its NIC
  CHECK(slowest(8, 8) == 50e9);                  // inside the leaf
  CHECK(slowest(4, 4) == 50e9);                  // inside the node
}
