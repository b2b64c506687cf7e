#include "sim/network/ports/domain_curves.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/network/exchange/exchange_model.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::network;
using profile::Collective;

namespace {

constexpr double mib = 1 << 20;

profile::Profile h100() { return profile::Profile::load("h100-sxm"); }

cluster::Cluster hgx_at(double gb_per_s) {
  cluster::Cluster cluster = cluster::Cluster::load("hgx-h100");
  cluster.domain.port = Bandwidth(gb_per_s * 1e9);
  return cluster;
}

double time_us(const cluster::Cluster& cluster, double bytes) {
  return DomainCurves(h100(), cluster).collective(Collective::all_to_all, 8, bytes).time_us;
}

}  // namespace

TEST_CASE("on the links that were measured the curve answers as it is") {
  const profile::Profile measured = h100();
  const profile::Estimate curve = measured.collective(Collective::all_to_all, 8, 64 * mib);
  for (const double rate : {450.0, 478.0, 425.0}) {  // of the same links, counted otherwise
    CAPTURE(rate);
    const cluster::Cluster cluster = hgx_at(rate);
    const DomainCurves curves(measured, cluster);
    const profile::Estimate estimate = curves.collective(Collective::all_to_all, 8, 64 * mib);
    CHECK(estimate.time_us == curve.time_us);
    CHECK(estimate.time_us_p95 == curve.time_us_p95);
    CHECK(estimate.origin == curve.origin);
    CHECK(estimate.support == profile::Support::measured_point);
    CHECK(curves.basis() ==
          (rate == 450 ? "" : fmt::format("NVLink at {} GB/s counted as the profile's 450", rate)));
  }
}

TEST_CASE("faster links make no exchange later, and a percent of their rate moves none by two") {
  const profile::Profile measured = h100();
  const auto estimate_at = [&](Collective kind, double rate) {
    return DomainCurves(measured, hgx_at(rate)).collective(kind, 8, 64 * mib);
  };
  for (const Collective kind : {Collective::all_to_all, Collective::all_reduce,
                                Collective::all_gather, Collective::reduce_scatter}) {
    profile::Estimate before = estimate_at(kind, 200);
    for (double rate = 202; rate < 1000; rate *= 1.01) {
      CAPTURE(name_of(kind), rate);
      const profile::Estimate now = estimate_at(kind, rate);
      CHECK(now.time_us <= before.time_us);
      CHECK(now.time_us > 0.98 * before.time_us);
      CHECK(now.time_us_p95 > 0.97 * before.time_us_p95);
      before = now;
    }
  }
}

TEST_CASE("a rate that differs a little counts in part, and the basis says as what") {
  const profile::Profile measured = h100();
  // Half of the way from 1.07 to 1.25, in logs, is half of 1.25.
  const cluster::Cluster between = hgx_at(450 / std::sqrt(1.07 * 1.25));
  const DomainCurves curves(measured, between);
  CHECK(curves.collective(Collective::all_to_all, 8, 64 * mib).time_us ==
        Approx(measured.collective(Collective::all_to_all, 8, std::sqrt(1.25) * 64 * mib).time_us));
  CHECK(curves.basis() ==
        "NVLink at 389.1 GB/s, measured at 450, counted as 402.5: its time for 1.12 times the "
        "bytes");
}

TEST_CASE("links of another rate take the curve's time for as much more bytes") {
  const profile::Profile measured = h100();
  const profile::Estimate twice = measured.collective(Collective::all_to_all, 8, 128 * mib);
  const cluster::Cluster half = hgx_at(225);
  const DomainCurves curves(measured, half);
  const profile::Estimate estimate = curves.collective(Collective::all_to_all, 8, 64 * mib);
  CHECK(estimate.time_us == twice.time_us);
  // A factor of 1.5 to either side, of links that count as 2 times as slow.
  const auto as_slow = [&](double bytes) {
    return measured.collective(Collective::all_to_all, 8, bytes);
  };
  CHECK(estimate.time_us_p05 == Approx(as_slow(2 / 1.5 * 64 * mib).time_us_p05).epsilon(1e-3));
  CHECK(estimate.time_us_p95 == Approx(as_slow(2 * 1.5 * 64 * mib).time_us_p95).epsilon(1e-3));
  CHECK(estimate.origin == profile::Origin::derived);
  CHECK(estimate.support == profile::Support::interpolated);
  CHECK(curves.basis() == "NVLink at 225 GB/s, measured at 450: its time for 2 times the bytes");
  CHECK(time_us(hgx_at(1800), 64 * mib) == time_us(hgx_at(450), 16 * mib));
  CHECK(DomainCurves(measured, hgx_at(112.5))
            .collective(Collective::all_to_all, 8, mib)
            .time_us_p95 == Approx(as_slow(4 * 1.5 * 1.5 * mib).time_us_p95).epsilon(1e-3));
  // Latency is not of the links.
  CHECK(time_us(half, 1) == Approx(time_us(hgx_at(450), 1)).epsilon(0.01));
}

// The rate of links says nothing of the start of a kernel. (Fewer bytes than the smallest measured
// message has, as faster links count them, widen a band a little.)
TEST_CASE("links of another rate widen no band of messages that are all start") {
  const profile::Profile measured = h100();
  for (const Collective kind : {Collective::all_to_all, Collective::all_reduce,
                                Collective::all_gather, Collective::reduce_scatter}) {
    const profile::Estimate known = measured.collective(kind, 8, 512);
    for (const double rate : {112.5, 225.0, 900.0, 1800.0}) {
      CAPTURE(name_of(kind), rate);
      const cluster::Cluster other = hgx_at(rate);
      const profile::Estimate estimate = DomainCurves(measured, other).collective(kind, 8, 512);
      CHECK(estimate.time_us_p05 / estimate.time_us >= 0.9 * known.time_us_p05 / known.time_us);
      CHECK(estimate.time_us_p95 / estimate.time_us <= 1.1 * known.time_us_p95 / known.time_us);
    }
  }
}

TEST_CASE("both ends come later with slower links inside a domain", "[property]") {
  const profile::Profile measured = h100();
  for (const Collective kind : {Collective::all_to_all, Collective::all_reduce,
                                Collective::all_gather, Collective::reduce_scatter}) {
    for (double bytes = 1024; bytes <= 16384 * mib; bytes *= 2) {
      profile::Estimate faster;
      for (double rate = 1800; rate > 100; rate /= 1.05) {
        CAPTURE(name_of(kind), bytes, rate);
        const cluster::Cluster cluster = hgx_at(rate);
        const profile::Estimate slower = DomainCurves(measured, cluster).collective(kind, 8, bytes);
        CHECK(slower.time_us_p05 >= faster.time_us_p05);
        CHECK(slower.time_us_p95 >= faster.time_us_p95);
        CHECK(slower.time_us_p05 <= slower.time_us);
        CHECK(slower.time_us_p95 >= slower.time_us);
        faster = slower;
      }
    }
  }
}

TEST_CASE("behind PCIe the line rate is that of PCIe") {
  const profile::Profile l40s = profile::Profile::load("l40s");
  const cluster::Cluster own = cluster::Cluster::load("pcie-l40s");
  CHECK(DomainCurves(l40s, own).basis().empty());
  const cluster::Cluster nvlink = cluster::Cluster::load("dgx-a100");
  CHECK(DomainCurves(l40s, nvlink).basis().starts_with("NVLink at 300 GB/s, measured at 32"));
}

TEST_CASE("slower links inside a domain make every exchange through it slower") {
  const auto profile = std::make_shared<const profile::Profile>(h100());
  std::vector<int> members(16);
  for (int gpu = 0; gpu < 16; ++gpu) members[static_cast<std::size_t>(gpu)] = gpu;
  const auto whole = std::make_shared<const cluster::Cluster>(hgx_at(450));
  const auto half = std::make_shared<const cluster::Cluster>(hgx_at(225));
  const ExchangeModel fast(profile, whole);
  const ExchangeModel slow(profile, half);
  for (const Collective kind : {Collective::all_to_all, Collective::all_reduce,
                                Collective::all_gather, Collective::reduce_scatter}) {
    CAPTURE(name_of(kind));
    const std::span<const int> inside = std::span(members).first(8);
    CHECK(slow.price(kind, inside, 256 * mib).time_us >
          1.7 * fast.price(kind, inside, 256 * mib).time_us);
    CHECK(slow.price(kind, members, 256 * mib).time_us >=
          fast.price(kind, members, 256 * mib).time_us);
  }
  CHECK(slow.basis(Collective::all_to_all, members, mib).find("225 GB/s") != std::string::npos);
  CHECK(fast.basis(Collective::all_to_all, members, mib).find("GB/s") == std::string::npos);
}

namespace {

// All-to-all inside one node, `factor` times what H100's curve says.
cluster::MeasuredExchange on_one_node(int gpus, double factor) {
  cluster::MeasuredExchange measured;
  measured.gpus = gpus;
  measured.origin = "measured: one_node.log";
  const profile::Profile curve = h100();
  for (double bytes = 1024; bytes <= 1024 * mib; bytes *= 2) {
    measured.bytes.push_back(bytes);
    measured.time_us.push_back(factor *
                               curve.collective(Collective::all_to_all, gpus, bytes).time_us);
  }
  return measured;
}

// What the curve of `gpus` is scaled by, where 8 GPUs that send as much are a measured point.
double scaled_by(const std::vector<cluster::MeasuredExchange>& exchanges, int gpus) {
  cluster::Cluster cluster = cluster::Cluster::load("hgx-h100");
  cluster.exchanges = exchanges;
  const profile::Profile curve = h100();
  const double bytes = 64 * mib * 7 / 8 * gpus / (gpus - 1);
  return DomainCurves(curve, cluster).collective(Collective::all_to_all, gpus, bytes).time_us /
         curve.collective(Collective::all_to_all, gpus, bytes).time_us;
}

}  // namespace

TEST_CASE("what was measured among some GPUs of a node carries over to the others") {
  for (const int gpus : {2, 3, 4, 6, 7, 8}) {
    CHECK(scaled_by({on_one_node(8, 1.6)}, gpus) == Approx(1.6));
    CHECK(scaled_by({on_one_node(8, 0.8)}, gpus) == Approx(0.8));
  }
  // Between two numbers of GPUs, between their ratios.
  const double between = scaled_by({on_one_node(8, 1.6), on_one_node(4, 1.2)}, 6);
  CHECK(between == Approx(1.2 * std::pow(1.6 / 1.2, std::log2(6.0 / 4))).epsilon(0.005));
  // What one size alone has, as where a protocol changes, does not carry over.
  auto kink = on_one_node(8, 1.1);
  for (std::size_t size = 0; size < kink.bytes.size(); ++size) {
    if (kink.bytes[size] == 64 * mib) kink.time_us[size] *= 3;
  }
  CHECK(scaled_by({kink}, 8) == Approx(3.3));
  CHECK(scaled_by({kink}, 4) == Approx(1.1));
}

TEST_CASE("beyond the measured sizes what is carried over is extrapolated") {
  const profile::Profile curve = h100();
  cluster::Cluster cluster = cluster::Cluster::load("hgx-h100");
  auto small = on_one_node(8, 3);
  while (small.bytes.back() > mib) small.bytes.pop_back();
  small.time_us.resize(small.bytes.size());
  cluster.exchanges = {small};
  const DomainCurves curves(curve, cluster);
  const double largest = mib * (7.0 / 8) / (3.0 / 4);  // of 4 GPUs: as much sent as by 8 with 1 MiB
  const auto at = [&](double bytes) { return curves.collective(Collective::all_to_all, 4, bytes); };
  const auto usual = [&](double bytes) {
    return curve.collective(Collective::all_to_all, 4, bytes);
  };
  const auto last = at(largest);
  CHECK(last.support == profile::Support::interpolated);
  CHECK(last.time_us == Approx(3 * usual(largest).time_us));
  CHECK(at(1.001 * largest).time_us == Approx(last.time_us).epsilon(0.01));
  CHECK(at(1.001 * largest).support == profile::Support::extrapolated);
  // What latency has more stays as long; nobody saw whether bytes take longer too.
  const auto far = at(64 * mib);
  const double more_us = last.time_us - usual(largest).time_us;
  CHECK(far.support == profile::Support::extrapolated);
  CHECK(far.time_us > usual(64 * mib).time_us + more_us);
  CHECK(far.time_us < 2 * usual(64 * mib).time_us);
  CHECK(far.time_us_p05 < usual(64 * mib).time_us + more_us);
  CHECK(far.time_us_p95 > 3 * usual(64 * mib).time_us);
  double before_us = last.time_us;
  for (double bytes = 1.05 * largest; bytes < 1024 * mib; bytes *= 1.05) {
    const double time_us = at(bytes).time_us;
    CHECK(time_us >= 0.99 * before_us);
    before_us = time_us;
  }
  // A curve that begins where bytes decide says little of the smallest sizes.
  auto large = on_one_node(8, 3);
  const auto first = std::find(large.bytes.begin(), large.bytes.end(), 256 * mib);
  large.time_us.erase(large.time_us.begin(), large.time_us.begin() + (first - large.bytes.begin()));
  large.bytes.erase(large.bytes.begin(), first);
  cluster.exchanges = {large};
  const auto smallest = at(1024);
  CHECK(smallest.support == profile::Support::extrapolated);
  CHECK(smallest.time_us < 1.2 * usual(1024).time_us);
  CHECK(smallest.time_us_p95 > 3 * usual(1024).time_us);
}

TEST_CASE("beyond its sizes the cluster's own curve goes on as the profile's") {
  const profile::Profile curve = h100();
  cluster::Cluster cluster = cluster::Cluster::load("hgx-h100");
  const auto only = [&](double factor, double from, double to) {
    auto measured = on_one_node(8, factor);
    cluster::MeasuredExchange kept = measured;
    kept.bytes.clear();
    kept.time_us.clear();
    for (std::size_t size = 0; size < measured.bytes.size(); ++size) {
      if (measured.bytes[size] < from || measured.bytes[size] > to) continue;
      kept.bytes.push_back(measured.bytes[size]);
      kept.time_us.push_back(measured.time_us[size]);
    }
    cluster.exchanges = {kept};
    return DomainCurves(curve, cluster);
  };
  const auto usual = [&](double bytes) {
    return curve.collective(Collective::all_to_all, 8, bytes).time_us;
  };
  for (const double bytes : {1024.0, 65536.0, 1024 * mib, 16384 * mib}) {
    CAPTURE(bytes);
    for (const auto& [from, to] : {std::pair{8 * mib, 128 * mib}, {1024.0, 2 * mib}}) {
      if (bytes >= from && bytes <= to) continue;
      const double same = only(1, from, to).collective(Collective::all_to_all, 8, bytes).time_us;
      CHECK(same == Approx(usual(bytes)));
      const auto slow = only(2, from, to).collective(Collective::all_to_all, 8, bytes);
      CHECK(slow.time_us > usual(bytes));
      CHECK(slow.time_us < 2 * usual(bytes));
      CHECK(slow.time_us_p95 > 2 * usual(bytes));
      CHECK(slow.origin == profile::Origin::derived);
      CHECK(slow.support == profile::Support::extrapolated);
    }
  }
  const DomainCurves large = only(1, 8 * mib, 128 * mib);
  CHECK(large.measured(Collective::all_to_all, 8, 16 * mib) == "measured: one_node.log");
  CHECK(large.measured(Collective::all_to_all, 8, mib) ==
        "measured: one_node.log; outside its sizes the profile's curve, scaled");
  // The profile knows no 16 GPUs of one domain: the log goes on by itself.
  cluster.gpus_per_node = cluster.gpus_per_domain = 16;
  cluster.exchanges[0].gpus = 16;
  const double last_us = cluster.exchanges[0].time_us.back();
  const auto alone = large.collective(Collective::all_to_all, 16, 256 * mib);
  CHECK(alone.time_us == cluster.exchanges[0].at(256 * mib).time_us);
  CHECK(alone.time_us > last_us);
  CHECK(alone.origin == profile::Origin::measured);
}

TEST_CASE("what is carried over is derived, and its band wider") {
  const profile::Profile curve = h100();
  cluster::Cluster cluster = cluster::Cluster::load("hgx-h100");
  cluster.exchanges = {on_one_node(8, 1.6)};
  const DomainCurves curves(curve, cluster);
  const auto before = curve.collective(Collective::all_to_all, 4, 64 * mib);
  const auto after = curves.collective(Collective::all_to_all, 4, 64 * mib);
  CHECK(after.origin == profile::Origin::derived);
  CHECK(after.support == profile::Support::interpolated);
  CHECK(after.time_us_p95 / after.time_us > before.time_us_p95 / before.time_us);
  CHECK(after.time_us_p05 / after.time_us < before.time_us_p05 / before.time_us);
  CHECK(curves.collective(Collective::all_to_all, 8, 64 * mib).support ==
        profile::Support::measured_point);
  // Another operation, and a run between nodes, say nothing of it.
  CHECK(curves.collective(Collective::all_gather, 4, 64 * mib).time_us ==
        curve.collective(Collective::all_gather, 4, 64 * mib).time_us);
  cluster.exchanges[0].nodes = 2;
  CHECK(DomainCurves(curve, cluster).collective(Collective::all_to_all, 4, 64 * mib).time_us ==
        before.time_us);
}

TEST_CASE("a log of another number of GPUs narrows a band, as far as its sizes agree") {
  const profile::Profile curve = h100();
  cluster::Cluster cluster = cluster::Cluster::load("hgx-h100");
  const auto usual = curve.collective(Collective::all_to_all, 4, mib);
  const auto width = [](const profile::Estimate& estimate) {
    return std::log(estimate.time_us_p95 / estimate.time_us_p05);
  };
  const auto among_4 = [&](const cluster::MeasuredExchange& log) {
    cluster.exchanges = {log};
    return DomainCurves(curve, cluster).collective(Collective::all_to_all, 4, mib);
  };
  CHECK(width(among_4(on_one_node(8, 1))) == Approx(width(usual) / 2).epsilon(0.1));
  const auto slower = among_4(on_one_node(8, 1.2));
  CHECK(width(slower) > width(usual) / 2);
  CHECK(width(slower) < 0.8 * width(usual));
  // Beyond the sizes of the log the error of latencies is as large as without it.
  cluster::MeasuredExchange large = on_one_node(8, 1);
  const auto from = std::find_if(large.bytes.begin(), large.bytes.end(),
                                 [](double bytes) { return bytes >= 16 * mib; });
  large.time_us.erase(large.time_us.begin(), large.time_us.begin() + (from - large.bytes.begin()));
  large.bytes.erase(large.bytes.begin(), from);
  CHECK(width(among_4(large)) >= width(usual) * (1 - 1e-9));
}

TEST_CASE("curves inside a domain say what of them an answer goes by") {
  const profile::Profile curve = h100();
  cluster::Cluster cluster = cluster::Cluster::load("hgx-h100");
  cluster.exchanges = {on_one_node(8, 1.6), on_one_node(4, 1.2)};
  const auto measured = [&](int gpus, std::optional<double> bytes) {
    return DomainCurves(curve, cluster).measured(Collective::all_to_all, gpus, bytes);
  };
  const std::string among = "scaled as measured among ";
  CHECK(measured(8, mib) == "measured: one_node.log");
  CHECK(measured(6, mib) == among + "4, 8 GPUs of cluster hgx-h100");
  CHECK(measured(3, mib) == among + "4 GPUs of cluster hgx-h100");
  CHECK(measured(3, std::nullopt) == among + "4 GPUs of cluster hgx-h100");
  CHECK(DomainCurves(curve, cluster).measured(Collective::all_gather, 3, mib).empty());
  // Sizes that disagree say nothing of other numbers of GPUs.
  cluster.exchanges = {on_one_node(8, 1)};
  for (std::size_t size = 0; size < cluster.exchanges[0].bytes.size(); ++size) {
    cluster.exchanges[0].time_us[size] *= size % 2 == 0 ? 1.2 : 0.9;
  }
  CHECK(measured(4, mib).empty());
  CHECK(measured(4, std::nullopt).empty());
  const auto usual = curve.collective(Collective::all_to_all, 4, mib);
  const auto answer = DomainCurves(curve, cluster).collective(Collective::all_to_all, 4, mib);
  CHECK(answer.origin == usual.origin);
  CHECK(answer.support == usual.support);
  CHECK(answer.time_us_p95 == usual.time_us_p95);
}
