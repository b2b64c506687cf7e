#include "sim/network/exchange/exchange_model.hpp"

#include <numeric>

#include "sim/base/error.hpp"
#include "tests/sim/network/exchange_shapes.hpp"
#include "tests/support/catch.hpp"

namespace moesim::network {
namespace {

using profile::Collective;

std::vector<int> gpus(int count) {
  std::vector<int> list(static_cast<std::size_t>(count));
  std::iota(list.begin(), list.end(), 0);
  return list;
}

std::shared_ptr<const profile::Profile> a100() {
  return std::make_shared<profile::Profile>(profile::Profile::load("a100-sxm-80gb"));
}

ExchangeModel model_of(const char* cluster, ExchangeSettings settings = {}) {
  return {a100(), std::make_shared<cluster::Cluster>(cluster::Cluster::load(cluster)), settings};
}

}  // namespace

TEST_CASE("a uniform matrix inside a node takes the time of the measured curve") {
  const ExchangeModel model = model_of("dgx-a100");
  for (const int ranks : {2, 4, 8}) {
    for (const std::int64_t block :
         {std::int64_t{64}, std::int64_t{5000}, std::int64_t{1} << 17, std::int64_t{1} << 24}) {
      const profile::Estimate curve =
          a100()->collective(Collective::all_to_all, ranks, static_cast<double>(block * ranks));
      const ExchangeAnswer answer =
          model.exchange(gpus(ranks), uniform_matrix(ranks, block), {}, schedules::nccl);
      INFO(ranks << " ranks, " << block << " B");
      // To the picosecond, but for the rounding of link rates.
      CHECK(answer.estimate.time_us == Approx(curve.time_us).margin(1e-5).epsilon(1e-9));
      CHECK(answer.estimate.time_us_p05 == Approx(curve.time_us_p05).margin(1e-5).epsilon(1e-9));
      CHECK(answer.estimate.time_us_p95 == Approx(curve.time_us_p95).margin(1e-5).epsilon(1e-9));
      CHECK(answer.estimate.origin == curve.origin);
      CHECK(answer.used == Method::fast);
      CHECK_THAT(answer.provenance, ContainsSubstring("inside a domain published"));
    }
  }
}

TEST_CASE("an uneven matrix inside a node takes the time of its busiest port") {
  const ExchangeModel model = model_of("dgx-a100");
  // Popular destinations: rank 0 gets 7 equal messages of w bytes, a uniform exchange's port load
  // at a buffer of 8 w.
  const ByteMatrix bytes = zipf_matrix(8);
  const auto buffer = static_cast<double>(8 * bytes.at(1, 0));
  const profile::Estimate curve = a100()->collective(Collective::all_to_all, 8, buffer);
  const ExchangeAnswer answer = model.exchange(gpus(8), bytes, {}, schedules::nccl);
  CHECK(answer.estimate.time_us == Approx(curve.time_us).margin(1e-4));
  // Every rank sends to rank 0 until the end.
  for (const double finish : answer.rank_finish_us) {
    CHECK(finish == Approx(answer.estimate.time_us).margin(1e-4));
  }
  // Sizes that need real sharing: flows, no faster than the busiest port.
  const ExchangeAnswer routed = model.exchange(gpus(8), routed_matrix(8), {}, schedules::nccl);
  CHECK(routed.used == Method::flows);
  CHECK_THAT(routed.provenance, ContainsSubstring("network flows"));
  CHECK(routed.lower_us == routed.upper_us);
}

TEST_CASE("across nodes a uniform matrix takes the time of the law, and its error bar") {
  const ExchangeModel model = model_of("dgx-a100");
  const std::int64_t block = 1 << 22;
  const profile::Estimate law =
      model.price(Collective::all_to_all, gpus(32), static_cast<double>(block) * 32);
  const ExchangeAnswer answer =
      model.exchange(gpus(32), uniform_matrix(32, block), {}, schedules::nccl);
  CHECK(answer.estimate.time_us == Approx(law.time_us).epsilon(1e-6));
  CHECK(answer.estimate.time_us_p05 == Approx(law.time_us_p05).epsilon(1e-6));
  CHECK(answer.estimate.time_us_p95 == Approx(law.time_us_p95).epsilon(1e-6));
  CHECK(answer.estimate.origin == profile::Origin::assumed);
  CHECK_THAT(answer.provenance, ContainsSubstring("NICs at 0.95"));
  for (const double finish : answer.rank_finish_us) {
    CHECK(finish == Approx(answer.estimate.time_us));
  }
}

TEST_CASE("an uneven matrix across nodes is later by as much, and who does not cross is not") {
  const ExchangeModel model = model_of("dgx-a100");
  const std::int64_t block = 1 << 22;
  // One message from node to node, and one inside the second node.
  ByteMatrix matrix(16);
  matrix.at(0, 8) = 16 * block;
  matrix.at(9, 10) = block;
  const ExchangeAnswer answer = model.exchange(gpus(16), matrix, {}, schedules::nccl);
  // As an even exchange of 32 blocks would load NIC 0.
  const PortModel ports(std::make_shared<profile::Profile>(profile::Profile::load("a100-sxm-80gb")),
                        std::make_shared<cluster::Cluster>(cluster::Cluster::load("dgx-a100")));
  const double law_us = ports.price(Collective::all_to_all, gpus(16), 32.0 * block).time_us;
  CHECK(answer.estimate.time_us == Approx(law_us).epsilon(1e-3));
  CHECK(answer.rank_finish_us[0] == Approx(answer.estimate.time_us));
  CHECK(answer.rank_finish_us[10] < 0.1 * answer.estimate.time_us);
  CHECK(answer.rank_finish_us[15] == 0);
}

TEST_CASE("the error bar of flows is that of the busiest link, in proportion") {
  const ExchangeModel model = model_of("dgx-a100");
  const cluster::Cluster cluster = cluster::Cluster::load("dgx-a100");
  const ExchangeAnswer answer = model.exchange(gpus(16), routed_matrix(16), {}, schedules::burst);
  CHECK(answer.used == Method::flows);
  CHECK_THAT(answer.provenance, ContainsSubstring("in proportion to the busiest link's"));
  // NICs bind: but for the latency, the time is that of their efficiency.
  CHECK((answer.estimate.time_us_p95 - cluster.nic_latency_us) /
            (answer.estimate.time_us - cluster.nic_latency_us) ==
        Approx(cluster.nic_efficiency / cluster.nic_efficiency_low).epsilon(0.02));
  CHECK((answer.estimate.time_us_p05 - cluster.nic_latency_us) /
            (answer.estimate.time_us - cluster.nic_latency_us) ==
        Approx(cluster.nic_efficiency / cluster.nic_efficiency_high).epsilon(0.02));
}

TEST_CASE("an exchange of nothing says so") {
  const ExchangeAnswer answer =
      model_of("dgx-a100").exchange(gpus(1), ByteMatrix(1), {}, schedules::burst);
  CHECK_THAT(answer.provenance, ContainsSubstring("nothing to send; schedule burst"));
}

TEST_CASE("ideal links are taken as they are by schedules that no measurement describes") {
  const ExchangeModel model = model_of("ideal-switch");
  CHECK(model.exchange(gpus(16), zipf_matrix(16), {}, schedules::burst).estimate.time_us ==
        Approx(1489.781).margin(0.0006).epsilon(0));
  CHECK(model_of("ideal-node8")
            .exchange(gpus(16), zipf_matrix(16), {}, schedules::burst)
            .estimate.time_us == Approx(796.016).margin(0.0006).epsilon(0));
  CHECK(model_of("ideal-tree2")
            .exchange(gpus(64), uniform_matrix(64), {}, schedules::burst)
            .estimate.time_us == Approx(2014.266).margin(0.0006).epsilon(0));
}

TEST_CASE("leaves with little bandwidth above them slow a uniform all-to-all down") {
  // ideal-tree2 of 64: 16 of a leaf's ranks each send 48 of 64 blocks through 16 * 25e9 B/s, twice
  // as long as 63 of 64 through a port of 50e9.
  const ExchangeModel model = model_of("ideal-tree2");
  const double bytes = 64e6;
  CHECK(model.price(Collective::all_to_all, gpus(64), bytes).time_us ==
        Approx(1 + 16 * 48 * 1e6 / 400e3));
  // 16 below one leaf do not notice it.
  CHECK(model.price(Collective::all_to_all, gpus(16), 16e6).time_us == Approx(1 + 15e6 / 50e3));
}

TEST_CASE("an exchange model refuses matrices and GPUs that do not fit") {
  const ExchangeModel model = model_of("dgx-a100");
  CHECK_THROWS_AS(model.exchange(gpus(4), ByteMatrix(5), {}, schedules::nccl), UsageError);
  CHECK_THROWS_AS(model.exchange(std::vector<int>{0, 1, 1}, ByteMatrix(3), {}, schedules::nccl),
                  UsageError);
}

}  // namespace moesim::network
