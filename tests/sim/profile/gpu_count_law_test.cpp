#include "sim/profile/gpu_count_law.hpp"

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::profile;

namespace {

constexpr double kibibyte = 1024;
constexpr double mebibyte = 1024 * kibibyte;

NodeLinks behind_switch(double port_bytes_per_us) {
  NodeLinks links;
  links.kind = NodeLinks::Kind::nvlink_switch;
  links.port_bytes_per_us = port_bytes_per_us;
  return links;
}

// A curve through `time_us` at every octave from 512 B to 512 MiB.
CountCurve curve_of(int gpus, const std::function<double(double)>& time_us) {
  std::vector<double> bytes;
  std::vector<double> times;
  for (double size = 512; size <= 512 * mebibyte; size *= 2) {
    bytes.push_back(size);
    times.push_back(time_us(size));
  }
  return {gpus, SizeCurve(bytes, times)};
}

}  // namespace

TEST_CASE("a saturated port takes as long per byte sent among more GPUs") {
  // Among 4, 3/4 of the size leaves a GPU, at 0.7 of 1e5 B/us: the channels add nothing.
  const auto port_us = [](double size, int gpus) { return size * (gpus - 1) / gpus / 0.7e5; };
  const CountCurve four = curve_of(4, [&](double size) { return 10 + port_us(size, 4); });
  const SizeCurve eight = among_more_gpus(Collective::all_to_all, behind_switch(1e5), {four}, 8);
  const double rise = eight.time_us(512 * mebibyte) - eight.time_us(256 * mebibyte);
  CHECK(rise == Approx(port_us(256 * mebibyte, 8)).epsilon(1e-9));
}

TEST_CASE("channels that copy take as long among any number of GPUs") {
  // A port so fast that it takes nothing: 1 us per 1e5 bytes is what the channels take.
  const CountCurve two = curve_of(2, [](double size) { return 10 + size / 1e5; });
  const SizeCurve eight = among_more_gpus(Collective::all_to_all, behind_switch(1e12), {two}, 8);
  const double rise = eight.time_us(512 * mebibyte) - eight.time_us(256 * mebibyte);
  CHECK(rise == Approx(256 * mebibyte / 1e5).epsilon(1e-9));
}

TEST_CASE("between the two the times add by their fourth powers") {
  // 4 GPUs take (c^4 + (3/4 p)^4)^(1/4) per byte with c = 2e-5, p = 1 / (0.7 * 5e4) us.
  const double port = 1 / (0.7 * 5e4);
  const auto slope = [&](double share) {
    return std::pow(std::pow(2e-5, 4) + std::pow(share * port, 4), 0.25);
  };
  const CountCurve four = curve_of(4, [&](double size) { return 10 + size * slope(0.75); });
  const SizeCurve eight = among_more_gpus(Collective::all_to_all, behind_switch(5e4), {four}, 8);
  const double rise = eight.time_us(64 * mebibyte) - eight.time_us(32 * mebibyte);
  CHECK(rise == Approx(32 * mebibyte * slope(0.875)).epsilon(1e-9));
}

TEST_CASE("small messages go with the bytes per peer, a little more for each peer") {
  const CountCurve four = curve_of(4, [](double size) { return 10 + size / 1e4; });
  const SizeCurve eight = among_more_gpus(Collective::all_to_all, behind_switch(3e5), {four}, 8);
  // 64 KiB among 8 is 8 KiB per peer, as is 32 KiB among 4; four more peers at 0.075 us.
  CHECK(eight.time_us(64 * kibibyte) == Approx(10 + 32 * kibibyte / 1e4 + 0.3));
  // 64 KiB per peer: all channels; 7/8 of 512 KiB leave a GPU, as of 7/6 as much 3/4 do.
  CHECK(eight.time_us(512 * kibibyte) == Approx(10 + 512 * kibibyte * 7 / 6 / 1e4));
}

TEST_CASE("a ring's steps continue: fixed part, latency and chunk per step") {
  // n GPUs: 5 us and n - 1 steps of 2 us and size / n at 1e5 B/us.
  const auto ring_us = [](int gpus, double size) {
    return 5 + (gpus - 1) * (2 + size / gpus / 1e5);
  };
  std::vector<CountCurve> fewer;
  for (const int gpus : {2, 4}) {
    fewer.push_back(curve_of(gpus, [&](double size) { return ring_us(gpus, size); }));
  }
  for (const Collective kind : {Collective::all_gather, Collective::reduce_scatter}) {
    const SizeCurve eight = among_more_gpus(kind, behind_switch(3e5), fewer, 8);
    for (const double size : {64 * kibibyte, 1 * mebibyte, 64 * mebibyte, 512 * mebibyte}) {
      INFO(name_of(kind) << " " << size);
      // The floor below 512 B bends the first knots by less than 512 / 1e5 us per step.
      CHECK(eight.time_us(size) == Approx(ring_us(8, size)).epsilon(0.005));
    }
  }
}

TEST_CASE("a switch that reduces sends no more among more GPUs") {
  NodeLinks links = behind_switch(3e5);
  const CountCurve two = curve_of(2, [](double size) { return 10 + size / 1e5; });
  const CountCurve four = curve_of(4, [](double size) { return 12 + size * 1.5 / 1e5; });
  const auto at = [&] {
    return among_more_gpus(Collective::all_reduce, links, {two, four}, 8).time_us(512 * mebibyte);
  };
  // Without: 1.75 / 1.5 of the bytes of 4 GPUs at most. With: as many, and 4 steps of 1 us.
  CHECK(at() > 1.1 * four.curve.time_us(512 * mebibyte));
  links.switch_reduces = true;
  CHECK(at() == Approx(four.curve.time_us(512 * mebibyte) + 4).epsilon(1e-4));
}

TEST_CASE("an all-reduce among the nodes of a rack takes a tree beyond eight GPUs") {
  const NodeLinks links = behind_switch(3e5);
  const CountCurve two = curve_of(2, [](double size) { return 10 + size / 1e5; });
  const CountCurve four = curve_of(4, [](double size) { return 14 + size * 1.5 / 1e5; });
  const auto least_us = [&](Collective kind, int gpus) {
    return among_more_gpus(kind, links, {two, four}, gpus).time_us(0);
  };
  // 2 us a GPU; from eight on for each doubling.
  CHECK(least_us(Collective::all_reduce, 8) == Approx(22).epsilon(0.001));
  CHECK(least_us(Collective::all_reduce, 64) == Approx(22 + 3 * 2).epsilon(0.001));
  CHECK(least_us(Collective::all_gather, 64) == Approx(14 + 60 * 2).epsilon(0.001));
}

TEST_CASE("over PCIe the link between groups of GPUs is a bottleneck of its own") {
  NodeLinks links;
  links.kind = NodeLinks::Kind::pcie;
  const CountCurve two = curve_of(2, [](double size) { return 10 + size / 2 / 2e4; });
  const CountCurve four = curve_of(4, [](double size) { return 12 + size * 3 / 4 / 2e4; });
  const auto rise = [&] {
    const SizeCurve eight = among_more_gpus(Collective::all_to_all, links, {two, four}, 8);
    return eight.time_us(512 * mebibyte) - eight.time_us(256 * mebibyte);
  };
  CHECK(rise() == Approx(256 * mebibyte * 7 / 8 / 2e4));  // ports alone
  links.group = 4;
  links.group_bytes_per_us = 3e4;
  // 4 GPUs send 4/8 of the size each to the other group: 2 sizes over 3e4 B/us.
  CHECK(rise() == Approx(256 * mebibyte * 2 / 3e4));
}

TEST_CASE("over PCIe that link takes its time from the first byte on") {
  NodeLinks links;
  links.kind = NodeLinks::Kind::pcie;
  links.group = 2;
  links.group_bytes_per_us = 6e3;
  const CountCurve two = curve_of(2, [](double size) { return 10 + size / 2 / 2e4; });
  const SizeCurve four = among_more_gpus(Collective::all_to_all, links, {two}, 4);
  // Two GPUs send half of the size each to the other group, after the latency of the smallest size.
  CHECK(four.time_us(512 * kibibyte) ==
        Approx(10 + 256 / 2e4 + 512 * kibibyte / 6e3).epsilon(1e-3));
  CHECK(four.time_us(2 * mebibyte) == Approx(10 + 2 * mebibyte / 6e3).epsilon(1e-3));
  // 4 KiB: 0.68 us over the link, less than what more bytes sent take.
  CHECK(four.time_us(512) == Approx(10 + 512 * 0.75 / 2e4).epsilon(1e-2));
}

TEST_CASE("the law's errors have regions by size, wider where less is known") {
  for (const auto& kind : collective_names) {
    const Residual nvlink = errors_of_law(kind.value, NodeLinks::Kind::nvlink_switch);
    REQUIRE(nvlink.regions().size() == 4);
    CHECK(nvlink.regions().back().below == std::numeric_limits<double>::infinity());
    // As far down as up, in logs.
    for (const Residual::Region& region : nvlink.regions()) {
      CHECK((1 + region.q05) * (1 + region.q95) == Approx(1));
    }
    CHECK(nvlink.regions().front().q95 > nvlink.regions().back().q95);
  }
  // Peers served one after another, behind root complexes: two machines that differ.
  CHECK(
      errors_of_law(Collective::all_to_all, NodeLinks::Kind::pcie).regions().front().q95 >
      errors_of_law(Collective::all_to_all, NodeLinks::Kind::nvlink_switch).regions().front().q95);
}

TEST_CASE("a law without what it rests on says what is missing") {
  const CountCurve two = curve_of(2, [](double size) { return 10 + size / 1e5; });
  const NodeLinks links = behind_switch(3e5);
  CHECK_THROWS_WITH(among_more_gpus(Collective::all_gather, links, {two}, 8),
                    ContainsSubstring("two GPU counts"));
  CHECK_THROWS_WITH(among_more_gpus(Collective::all_to_all, {}, {two}, 8),
                    ContainsSubstring("topology"));
  CHECK_THROWS_AS(among_more_gpus(Collective::all_to_all, links, {}, 8), Error);
  CHECK_THROWS_AS(among_more_gpus(Collective::all_to_all, links, {two}, 2), Error);
}
