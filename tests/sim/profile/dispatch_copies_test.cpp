#include "sim/profile/dispatch_copies.hpp"

#include <cstdint>
#include <vector>

#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::profile;

namespace {

// [GPU], all the same numbers.
template <typename Value>
SentBy<Value> all_send(const std::vector<Value>& numbers, int gpus) {
  return SentBy<Value>(static_cast<std::size_t>(gpus), numbers.data());
}

}  // namespace

TEST_CASE("copies to a place follow from the rows of its experts") {
  const MoeTraffic traffic = {256, 8};
  const CopiesLaw law(traffic, 8);
  CHECK(law.experts() == 32);
  // Balanced: 128 rows of 4,096 tokens to each expert.
  CHECK(law.to_place(4096, std::vector<double>(32, 128).data()) ==
        Approx(4096 * distinct_places(traffic, 8) / 8));
  // Every token chose one of its experts: one copy of each token, however many others it chose.
  std::vector<double> hot(32, 128);
  hot[5] = 4096;
  CHECK(law.to_place(4096, hot.data()) == 4096);
  // No more copies than rows.
  std::vector<double> few(32, 0);
  few[0] = 3;
  CHECK(law.to_place(4096, few.data()) == Approx(3));
}

TEST_CASE("balanced copies are the balanced load") {
  for (const DispatchGroup group : {DispatchGroup{8, 8}, DispatchGroup{32, 8}}) {
    const MoeTraffic traffic = {256, 8};
    const std::vector<double> rows(256, 128);
    std::vector<double> to_gpu, to_domain;
    const CopiesLaw gpus(traffic, group.gpus), domains(traffic, group.domains());
    for (int gpu = 0; gpu < group.gpus; ++gpu) to_gpu.push_back(gpus.to_place(4096, rows.data()));
    for (int domain = 0; domain < group.domains(); ++domain) {
      to_domain.push_back(domains.to_place(4096, rows.data()));
    }
    for (const DispatcherStage stage : {DispatcherStage::dispatch, DispatcherStage::combine}) {
      const DispatchLoad even = balanced_load(SentOnce::per_node, stage, traffic, group, 4096);
      const DispatchLoad load = load_of_copies(group, stage, all_send(to_gpu, group.gpus),
                                               all_send(to_domain, group.gpus));
      CHECK(load.copies == Approx(even.copies));
      CHECK(load.link_rows == Approx(even.link_rows));
      CHECK(load.nic_rows == Approx(even.nic_rows));
    }
    const DispatchLoad even =
        balanced_load(SentOnce::per_expert, DispatcherStage::dispatch, traffic, group, 4096);
    const DispatchLoad load = load_of_rows(group, 256, 1, all_send(rows, group.gpus));
    CHECK(load.copies == Approx(even.copies));
    CHECK(load.link_rows == Approx(even.link_rows));
    CHECK(load.nic_rows == Approx(even.nic_rows));
    CHECK(load.expert_rows == Approx(even.expert_rows));
  }
}

TEST_CASE("the busiest GPU, port and NIC of two domains of two GPUs") {
  const DispatchGroup group = {4, 2};
  // Every GPU sends 6 copies to GPU 0, 4 to GPU 3, and 7 and 5 to the domains.
  const std::vector<std::int32_t> to_gpu = {6, 0, 0, 4}, to_domain = {7, 5};
  const DispatchLoad there =
      load_of_copies(group, DispatcherStage::dispatch, all_send(to_gpu, 4), all_send(to_domain, 4));
  // GPU 0 receives 4 x 6 and forwards, for itself and GPU 2, 2 x 6. Each stages 7 + 5.
  CHECK(there.copies == 12 + 24);
  // Into GPU 0 from GPU 1, for itself and for GPU 3; GPU 0's own rows stay.
  CHECK(there.link_rows == 12);
  CHECK(there.nic_rows == 7);  // of GPUs 2 and 3 to domain 0
  const DispatchLoad back =
      load_of_copies(group, DispatcherStage::combine, all_send(to_gpu, 4), all_send(to_domain, 4));
  CHECK(back.copies == 12 + 24);
  // GPU 3 alone sends: 6 to GPU 0, by way of GPU 1, and 4 to itself.
  const std::vector<std::int32_t> none = {0, 0, 0, 0};
  const SentBy<std::int32_t> one = {none.data(), none.data(), none.data(), to_gpu.data()};
  const SentBy<std::int32_t> domains = {none.data(), none.data(), none.data(), to_domain.data()};
  const DispatchLoad lone = load_of_copies(group, DispatcherStage::dispatch, one, domains);
  CHECK(lone.copies == 12 + 4);  // GPU 3 stages 7 + 5 and forwards 4; GPU 1 forwards 6
  CHECK(lone.link_rows == 6);
  CHECK(lone.nic_rows == 7);
  // Slices of experts: each row to both GPUs of a domain. Expert 0 is in domain 0, expert 1 in 1.
  const std::vector<double> rows = {10, 3};
  const DispatchLoad sliced = load_of_rows(group, 2, 2, all_send(rows, 4));
  CHECK(sliced.copies == 40);  // received by GPU 0 and by GPU 1
  CHECK(sliced.link_rows == 10);
  CHECK(sliced.nic_rows == 20);  // from GPUs 2 and 3; out of these 2 x 10
  CHECK(sliced.expert_rows == 40);
}
