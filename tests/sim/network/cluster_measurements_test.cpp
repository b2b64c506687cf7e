#include "sim/network/ports/cluster_measurements.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "sim/network/exchange/exchange_model.hpp"
#include "tests/support/catch.hpp"

namespace moesim::network {
namespace {

using cluster::MeasuredOperation;
using profile::Collective;

std::vector<int> gpus(int count) {
  std::vector<int> list;
  for (int gpu = 0; gpu < count; ++gpu) list.push_back(gpu);
  return list;
}

cluster::MeasuredExchange two_nodes() {
  cluster::MeasuredExchange measured;
  measured.operation = MeasuredOperation::all_to_all;
  measured.nodes = 2;
  measured.gpus = 16;
  measured.library = "NCCL 2.28.9";
  measured.origin = "measured: two_nodes.log";
  measured.bytes = {1 << 20, 1 << 24, 1 << 28};
  measured.time_us = {120, 600, 8000};
  return measured;
}

ExchangeModel model_with(std::vector<cluster::MeasuredExchange> exchanges) {
  auto cluster = cluster::Cluster::load("hgx-h100");
  cluster.exchanges = std::move(exchanges);
  return {std::make_shared<profile::Profile>(profile::Profile::load("h100-sxm")),
          std::make_shared<cluster::Cluster>(cluster)};
}

}  // namespace

TEST_CASE("a curve measured on as many nodes answers by itself") {
  const ExchangeModel model = model_with({two_nodes()});
  const auto estimate = model.price(Collective::all_to_all, gpus(16), 1 << 24);
  CHECK(estimate.time_us == 600);
  CHECK(estimate.origin == profile::Origin::measured);
  CHECK(estimate.support == profile::Support::measured_point);
  CHECK(estimate.time_us_p95 == Approx(636));
  CHECK_THAT(model.basis(Collective::all_to_all, gpus(16), 1 << 24),
             ContainsSubstring("two_nodes.log"));
  const auto beyond = model.price(Collective::all_to_all, gpus(16), 1LL << 30);
  CHECK(beyond.support == profile::Support::extrapolated);
  CHECK(beyond.origin == profile::Origin::derived);
  CHECK(beyond.time_us_p95 / beyond.time_us > 1.06);
  CHECK_THAT(model.basis(Collective::all_to_all, gpus(16), 1LL << 30),
             ContainsSubstring("two_nodes.log; outside its sizes the law between nodes, scaled"));
  // Another operation, and GPUs that are not spread evenly, are not what was measured.
  CHECK(model.price(Collective::all_gather, gpus(16), 1 << 24).origin == profile::Origin::assumed);
  CHECK(model.price(Collective::all_to_all, gpus(12), 1 << 24).origin != profile::Origin::measured);
}

// nccl-tests -f 16: a latency and a rate come back, and a power law lies inside the band.
TEST_CASE("between sizes far apart the answer is a latency and a rate") {
  const auto line = [](double bytes) { return 45 + bytes / 80e3; };
  const auto power = [](double bytes) { return 30 * std::pow(bytes / 1024, 0.7); };
  auto on_line = two_nodes(), on_power = two_nodes();
  on_line.bytes = on_power.bytes = {1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 26, 1 << 30};
  on_line.time_us.clear();
  on_power.time_us.clear();
  for (const double bytes : on_line.bytes) {
    on_line.time_us.push_back(line(bytes));
    on_power.time_us.push_back(power(bytes));
  }
  const ExchangeModel lines = model_with({on_line}), powers = model_with({on_power});
  for (double bytes = 1 << 10; bytes < 1 << 30; bytes *= 1.3) {
    INFO(bytes << " bytes");
    const auto close = lines.price(Collective::all_to_all, gpus(16), bytes);
    CHECK(close.time_us == Approx(line(bytes)).epsilon(1e-6));
    const auto curved = powers.price(Collective::all_to_all, gpus(16), bytes);
    CHECK(curved.time_us_p05 <= power(bytes));
    CHECK(curved.time_us_p95 >= power(bytes));
  }
  // Two octaves from the nearer size: twice as wide, around the line and the power law.
  const auto middle = lines.price(Collective::all_to_all, gpus(16), 1 << 24);
  const double curved_us = std::sqrt(line(1 << 22) * line(1 << 26));
  CHECK(middle.time_us_p05 == Approx(0.88 * line(1 << 24)));
  CHECK(middle.time_us_p95 == Approx(1.12 * curved_us));
}

// A log of a machine that obeys the law, as long as `factor` times it.
cluster::MeasuredExchange logged(Collective kind, MeasuredOperation operation, double from,
                                 double to, double factor) {
  cluster::MeasuredExchange measured = two_nodes();
  measured.operation = operation;
  measured.bytes.clear();
  measured.time_us.clear();
  const ExchangeModel law = model_with({});
  for (double bytes = from; bytes <= to; bytes *= 2) {
    measured.bytes.push_back(bytes);
    measured.time_us.push_back(factor * law.price(kind, gpus(16), bytes).time_us);
  }
  return measured;
}

TEST_CASE("beyond its sizes a log of few sizes goes on as the law does") {
  constexpr double mib = 1 << 20;
  const std::vector<std::pair<Collective, MeasuredOperation>> kinds{
      {Collective::all_to_all, MeasuredOperation::all_to_all},
      {Collective::all_gather, MeasuredOperation::all_gather},
      {Collective::all_reduce, MeasuredOperation::all_reduce}};
  const ExchangeModel law = model_with({});
  for (const auto& [kind, operation] : kinds) {
    for (const auto& [from, to] : {std::pair{8 * mib, 128 * mib}, {1024.0, 2 * mib}}) {
      const ExchangeModel model = model_with({logged(kind, operation, from, to, 1)});
      const ExchangeModel slow = model_with({logged(kind, operation, from, to, 1.4)});
      for (const int count : {16, 32, 128}) {
        for (const double bytes : {1024.0, 65536.0, 1024 * mib, 16384 * mib}) {
          INFO(name_of(kind) << " from " << from << ", " << count << " GPUs, " << bytes);
          const auto unmeasured = law.price(kind, gpus(count), bytes);
          const double law_us = unmeasured.time_us;
          CHECK(model.price(kind, gpus(count), bytes).time_us == Approx(law_us).epsilon(0.005));
          // Of 40 % more at the edge up to all may be found elsewhere, of half of it on other
          // nodes.
          const double most = 1.005 * law_us * (count == 16 ? 1.4 : std::sqrt(1.4));
          const auto estimate = slow.price(kind, gpus(count), bytes);
          CHECK(estimate.time_us > law_us);
          CHECK(estimate.time_us <= most);
          if (count > 16 || (bytes >= from && bytes <= to)) continue;
          // To the reading that is further, up to the width of the band without a log.
          const double width = estimate.time_us_p95 / estimate.time_us_p05;
          const bool capped = width >= unmeasured.time_us_p95 / unmeasured.time_us_p05 * (1 - 1e-9);
          CHECK((estimate.time_us_p95 >= 1.4 * law_us * (1 - 1e-9) || capped));
        }
      }
    }
  }
}

TEST_CASE("the answer is continuous at the edge of what was measured") {
  const ExchangeModel model = model_with({two_nodes()});
  for (const auto& [edge, time_us] :
       {std::pair{double(1 << 20), 120.0}, {double(1 << 28), 8000.0}}) {
    for (const double factor : {1 - 1e-6, 1 + 1e-6}) {
      const auto near = model.price(Collective::all_to_all, gpus(16), edge * factor);
      CHECK(near.time_us == Approx(time_us).epsilon(1e-4));
      CHECK(near.time_us_p95 == Approx(1.06 * time_us).epsilon(2e-3));
      CHECK(near.time_us_p05 == Approx(0.94 * time_us).epsilon(2e-3));
    }
  }
}

TEST_CASE("a curve of other nodes corrects the law by half of what it is off") {
  const double bytes = 1 << 24;
  const ExchangeModel law = model_with({});
  // The same bytes on a NIC: 8/16 of a buffer on two nodes, 24/32 on four.
  const double same = bytes * (24.0 / 32) / (8.0 / 16);
  auto twice = two_nodes();
  twice.bytes = {same, 2 * same};
  const double law_us = law.price(Collective::all_to_all, gpus(16), same).time_us;
  twice.time_us = {2 * law_us, 4 * law_us};
  const ExchangeModel model = model_with({twice});
  const auto before = law.price(Collective::all_to_all, gpus(32), bytes);
  const auto after = model.price(Collective::all_to_all, gpus(32), bytes);
  CHECK(after.time_us == Approx(before.time_us * std::sqrt(2.0)));
  CHECK(after.origin == profile::Origin::derived);
  // Twice the nodes: half as wide again as the law's band, which is cut to 20 %; but no wider than
  // the law alone.
  const double above = 1 + 1.5 * std::min(before.time_us_p95 / before.time_us - 1, 0.2);
  const double below = 1 - 1.5 * std::min(1 - before.time_us_p05 / before.time_us, 0.2);
  const double share =
      std::min(std::log(before.time_us_p95 / before.time_us_p05) / std::log(above / below), 1.0);
  CHECK(share < 1);
  CHECK(after.time_us_p95 == Approx(after.time_us * std::pow(above, share)));
  CHECK(after.time_us_p05 == Approx(after.time_us * std::pow(below, share)));
}

TEST_CASE("bands grow with nodes and size beyond what was measured") {
  auto measured = two_nodes();
  measured.bytes = {1 << 10, 1 << 20, 1 << 24};
  measured.time_us = {32, 45, 270};
  const ExchangeModel model = model_with({measured});
  const auto widths = [&](int count, double bytes) {
    const auto estimate = model.price(Collective::all_to_all, gpus(count), bytes);
    return std::pair{1 - estimate.time_us_p05 / estimate.time_us,
                     estimate.time_us_p95 / estimate.time_us - 1};
  };
  const ExchangeModel law = model_with({});
  const auto is_as_wide_as_law = [&](int count, double bytes) {
    const auto width = [&](const ExchangeModel& priced) {
      const auto estimate = priced.price(Collective::all_to_all, gpus(count), bytes);
      return std::log(estimate.time_us_p95 / estimate.time_us_p05);
    };
    return width(model) > 0.9 * width(law);
  };
  for (const double bytes : {1024.0, 1e6, 16e6, 256e6, 4e9, 64e9}) {
    INFO(bytes << " bytes");
    const auto [below, above] = widths(16, bytes);
    double least = above;
    for (const int count : {24, 32, 64, 512, 4096}) {
      INFO(count << " GPUs");
      // Up to the band of the law without any measurement.
      const bool capped = is_as_wide_as_law(count, bytes);
      CHECK((widths(count, bytes).second >= least || capped));
      least = widths(count, bytes).second;
      // Below, the NICs' line rate is the end.
      const auto estimate = model.price(Collective::all_to_all, gpus(count), bytes);
      const double line_us = bytes * (count - 8) / count / 50e3;
      CHECK((widths(count, bytes).first >= below || capped ||
             estimate.time_us_p05 == Approx(std::min(line_us, estimate.time_us))));
      CHECK(estimate.time_us_p05 >= line_us * (1 - 1e-9));
    }
  }
  for (const int count : {24, 64, 4096}) {
    double least = 0;
    for (const double bytes : {16e6, 64e6, 1e9, 64e9}) {
      INFO(count << " GPUs, " << bytes << " bytes");
      CHECK((widths(count, bytes).second > least || is_as_wide_as_law(count, bytes)));
      least = widths(count, bytes).second;
    }
  }
}

TEST_CASE("a measurement far away makes no band wider than none") {
  auto measured = two_nodes();
  measured.bytes = {1 << 10, 1 << 20, 1 << 24};
  measured.time_us = {32, 45, 270};
  const ExchangeModel none = model_with({});
  const auto width = [](const profile::Estimate& estimate) {
    return std::log(estimate.time_us_p95 / estimate.time_us_p05);
  };
  const auto checked = [&](const ExchangeModel& known, double slack) {
    for (const int count : {16, 32, 64, 512, 4096}) {
      for (const double bytes : {16e6, 256e6, 4e9, 64e9}) {
        INFO(count << " GPUs, " << bytes << " bytes");
        const auto unmeasured = none.price(Collective::all_to_all, gpus(count), bytes);
        const auto estimate = known.price(Collective::all_to_all, gpus(count), bytes);
        CHECK(width(estimate) <= std::max(width(unmeasured), slack) * (1 + 1e-9));
        CHECK(estimate.time_us_p05 <= estimate.time_us);
        CHECK(estimate.time_us_p95 >= estimate.time_us);
      }
    }
  };
  checked(model_with({measured}), 0);
  // Its own runs differ by as much, whatever is far away.
  measured.p05_us = {20, 28, 150};
  measured.p95_us = {50, 70, 450};
  checked(model_with({measured}), std::log(450.0 / 150));
  const auto estimate = model_with({measured}).price(Collective::all_to_all, gpus(4096), 64e9);
  CHECK(width(estimate) > 0.9 * std::log(450.0 / 150));
}

TEST_CASE("links that are well known do not cap what is far from their measurement") {
  const auto width_with = [](bool known, std::vector<cluster::MeasuredExchange> exchanges) {
    auto cluster = cluster::Cluster::load("hgx-h100");
    if (known) cluster.nic_efficiency_low = cluster.nic_efficiency_high = cluster.nic_efficiency;
    cluster.exchanges = std::move(exchanges);
    const ExchangeModel model(
        std::make_shared<profile::Profile>(profile::Profile::load("h100-sxm")),
        std::make_shared<cluster::Cluster>(cluster));
    const auto estimate = model.price(Collective::all_to_all, gpus(512), 4e9);
    return std::log(estimate.time_us_p95 / estimate.time_us_p05);
  };
  CHECK(width_with(true, {two_nodes()}) > 1.2 * width_with(true, {}));
  CHECK(width_with(true, {two_nodes()}) <= width_with(false, {}) * (1 + 1e-9));
}

TEST_CASE("what was measured is named") {
  auto cluster = cluster::Cluster::load("hgx-h100");
  CHECK(measured_basis(cluster, Collective::all_to_all, gpus(16)).empty());
  cluster.exchanges = {two_nodes()};
  CHECK(measured_basis(cluster, Collective::all_to_all, gpus(16)) == "measured: two_nodes.log");
  CHECK(measured_basis(cluster, Collective::all_to_all, gpus(32)) ==
        "corrected by what was measured on 2 nodes of cluster hgx-h100");
  CHECK(measured_basis(cluster, Collective::all_to_all, gpus(8)).empty());
  CHECK(measured_basis(cluster, Collective::all_gather, gpus(16)).empty());
}

TEST_CASE("inside one domain a measured curve goes before the profile's") {
  auto inside = two_nodes();
  inside.nodes = 1;
  inside.gpus = 8;
  const ExchangeModel model = model_with({inside});
  CHECK(model.price(Collective::all_to_all, gpus(8), 1 << 20).time_us == 120);
  CHECK(model.price(Collective::all_to_all, gpus(4), 1 << 20).time_us != 120);
}

TEST_CASE("an uneven exchange is as much slower as the measured even one") {
  const std::int64_t block = 1 << 20;
  ByteMatrix even(16);
  for (int source = 0; source < 16; ++source) std::fill_n(even.row(source), 16, block);
  auto slow = two_nodes();
  const double law_us =
      model_with({}).price(Collective::all_to_all, gpus(16), 16.0 * block).time_us;
  slow.bytes = {1 << 20, 16.0 * block};
  slow.time_us = {50, 3 * law_us};
  const ExchangeModel model = model_with({slow});
  CHECK(model.exchange(gpus(16), even, {}, schedules::nccl).estimate.time_us ==
        Approx(3 * law_us).epsilon(1e-6));
}

}  // namespace moesim::network
