#include "sim/network/ports/cluster_measurements.hpp"

#include <memory>

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
  // Four times beyond the largest size: twice as wide.
  const auto beyond = model.price(Collective::all_to_all, gpus(16), 1LL << 30);
  CHECK(beyond.support == profile::Support::extrapolated);
  CHECK(beyond.time_us_p95 / beyond.time_us == Approx(1.12));
  // Another operation, and GPUs that are not spread evenly, are not what was measured.
  CHECK(model.price(Collective::all_gather, gpus(16), 1 << 24).origin == profile::Origin::assumed);
  CHECK(model.price(Collective::all_to_all, gpus(12), 1 << 24).origin != profile::Origin::measured);
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
  CHECK(after.time_us_p95 <= after.time_us * 1.2 * (1 + 1e-12));
  CHECK(after.time_us_p05 >= after.time_us * 0.8 * (1 - 1e-12));
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
