#include "sim/network/exchange/exchange_query.hpp"

#include <numeric>

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using network::ExchangePrediction;
using network::ExchangeQuery;
using network::predict_exchange;
using profile::Collective;

namespace {

constexpr double mib = 1 << 20;

// Every rank 50e9 B/s each way, routes of 1 us.
std::shared_ptr<const cluster::Cluster> ideal_switch() {
  return std::make_shared<const cluster::Cluster>(cluster::Cluster::load("ideal-switch"));
}

std::shared_ptr<const profile::Profile> h100() {
  return std::make_shared<const profile::Profile>(profile::Profile::load("h100-sxm"));
}

std::shared_ptr<const cluster::Cluster> hgx() {
  return std::make_shared<const cluster::Cluster>(cluster::Cluster::load("hgx-h100"));
}

ExchangeQuery among(int ranks, double bytes, const std::string& schedule = "") {
  ExchangeQuery query;
  query.members.resize(static_cast<std::size_t>(ranks));
  std::iota(query.members.begin(), query.members.end(), 0);
  query.bytes = bytes;
  query.schedule = schedule;
  return query;
}

}  // namespace

TEST_CASE("without a profile an all-to-all is a burst") {
  // 7 blocks of 1 MiB leave every port: 7 MiB / 50e9 B/s + 1 us.
  const ExchangePrediction answer = predict_exchange(among(8, 8 * mib), nullptr, ideal_switch());
  CHECK(answer.schedule == "burst");
  CHECK(answer.estimate.time_us == Approx(7 * mib / 50e3 + 1).margin(1e-3));
  CHECK(answer.rank_finish_us.size() == 8);
  CHECK(answer.lower_us == 0);  // exact
  CHECK(answer.upper_us == 0);
}

TEST_CASE("a matrix is what its ranks send, from when they begin") {
  ExchangeQuery query = among(2, 0, "pairwise");
  query.matrix = ByteMatrix(2);
  query.matrix->row(0)[1] = 1 << 20;
  query.start = {Picoseconds{5'000'000}, Picoseconds{0}};
  const ExchangePrediction answer = predict_exchange(query, nullptr, ideal_switch());
  CHECK(answer.schedule == "pairwise");
  CHECK(answer.estimate.time_us == Approx(5 + mib / 50e3 + 1).margin(1e-3));
}

TEST_CASE("a profile answers for equal blocks: its curve inside a domain, NICs between") {
  const ExchangePrediction inside = predict_exchange(among(8, 64 * mib), h100(), hgx());
  CHECK(inside.schedule.empty());
  const ExchangePrediction across = predict_exchange(among(16, 64 * mib), h100(), hgx());
  CHECK(across.schedule == "two-level");
  CHECK(across.estimate.time_us > inside.estimate.time_us);
  // Not where a network or another schedule is asked for.
  ExchangeQuery query = among(16, 64 * mib);
  query.network = network::Method::flows;
  CHECK(predict_exchange(query, h100(), hgx()).schedule == "burst");
  CHECK(predict_exchange(among(16, 64 * mib, "nccl"), h100(), hgx()).schedule == "nccl");
}

TEST_CASE("reductions travel in rings unless a tree is asked for") {
  ExchangeQuery query = among(4, 4 * mib);
  query.collective = Collective::all_reduce;
  CHECK(predict_exchange(query, nullptr, ideal_switch()).schedule == "ring");
  query.schedule = "tree";
  CHECK(predict_exchange(query, nullptr, ideal_switch()).provenance.ends_with("; trees"));
  query.collective = Collective::all_gather;
  CHECK_THROWS_WITH(predict_exchange(query, nullptr, ideal_switch()),
                    ContainsSubstring("all-gather: schedule 'tree' is not known"));
  query.schedule = "";
  query.network = network::Method::fast;
  CHECK_THROWS_WITH(predict_exchange(query, nullptr, ideal_switch()),
                    ContainsSubstring("leave it out"));
}

TEST_CASE("what has no answer, or one after hours, is refused") {
  const auto refused = [](const ExchangeQuery& query, const std::string& part) {
    CHECK_THROWS_WITH(predict_exchange(query, nullptr, ideal_switch()), ContainsSubstring(part));
  };
  refused(among(1, mib), "among 1 GPU");
  refused(among(8, mib, "two-level"), "give --profile");
  refused(among(8, mib, "tree"), "'tree'; choose from two-level, burst, pairwise");
  refused(among(4097, mib), "more than the 4096");
  refused(among(513, mib, "deepep"), "up to 512 are simulated");
  ExchangeQuery query = among(8, mib);
  query.distinct_share = 0.5;
  refused(query, "distinct-share goes with schedule deepep");
  query = among(1025, mib);
  query.collective = Collective::reduce_scatter;
  refused(query, "more than the 1024");
}
