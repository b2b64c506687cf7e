#include "sim/training/prices/exchange_prices.hpp"

#include "sim/training/step/pipelines.hpp"
#include "sim/training/step/training_step.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/training_job.hpp"

using namespace moesim;
using namespace moesim::training;

TEST_CASE("a dispatcher takes rows to all slices of an expert") {
  TrainingJob whole = qwen_on_h100(8, 1, 8, 8);
  whole.dispatcher =
      std::make_shared<const profile::Dispatcher>(profile::Dispatcher::load("deepep"));
  TrainingJob sliced = whole;
  sliced.layout.sizes.expert = 4;
  sliced.layout.sizes.expert_tensor = 2;
  const auto dispatch = [](const TrainingJob& asked) {
    return ExchangePrices(asked).dispatch_us(profile::MoeStage::dispatch, {});
  };
  // The same 8 GPUs. 128 experts, k 8: a token meets 5.339 of 8 ranks; of 4 pairs 3.64, so 7.28.
  CHECK(dispatch(sliced) / dispatch(whole) == Approx(7.28 / 5.339).epsilon(0.1));
  // No gathering of rows and no reduction besides, as an all-to-all of one slice needs.
  CHECK(part(training_step(sliced), Part::tensor) == 0);
  TrainingJob nccl = sliced;
  nccl.dispatcher = nullptr;
  CHECK(part(training_step(nccl), Part::tensor) > 0);
}

// 4096 tokens of top-8 of 128 experts on two nodes: each but 0.3 % has a row on the other node.
TEST_CASE("rows to other nodes cost a CPU proxy as much as in public training steps") {
  TrainingJob job = qwen_on_h100(16, 1, 16, 16);
  job.dispatcher = std::make_shared<const profile::Dispatcher>(profile::Dispatcher::load("deepep"));
  const auto dispatch = [&](const char* name) {
    job.cluster = std::make_shared<const cluster::Cluster>(cluster::Cluster::load(name));
    return ExchangePrices(job).dispatch_us(profile::MoeStage::dispatch, {});
  };
  const double rows = job.tokens_per_rank() * (1 - 1.0 / 337);
  const profile::DispatchNic& nic = *job.dispatcher->training_nic[1];
  CHECK(dispatch("aws-p5") == Approx(rows * nic.message_us.value).epsilon(0.1));
  CHECK(dispatch("aws-p5") > 2.5 * dispatch("hgx-h100"));
}

TEST_CASE("a dispatcher crosses as many domains as its group is placed on") {
  TrainingJob rack = qwen_on_h100(128, 1, 64, 512);
  rack.profile = std::make_shared<const profile::Profile>(profile::Profile::load("gb200"));
  rack.cluster = std::make_shared<const cluster::Cluster>(cluster::Cluster::load("gb200-nvl72"));
  rack.dispatcher =
      std::make_shared<const profile::Dispatcher>(profile::Dispatcher::load("hybridep"));
  const auto dispatch = [&](int ranks) {
    TrainingJob placed = rack;
    placed.ranks_per_domain = ranks;
    return ExchangePrices(placed).dispatch_us(profile::MoeStage::dispatch, {});
  };
  const double two = dispatch(32);
  CHECK(two > 1.2 * dispatch(64));
  CHECK(dispatch(16) > two);
  // 72 ranks in each domain: the second group of 64 lies on two of them.
  CHECK(dispatch(72) == two);
}

TEST_CASE("messages between stages of a node do not cross NICs") {
  TrainingJob halves = qwen_on_h100(16, 4, 4, 64);  // two stages on each of two nodes
  Pipelines pipelines(halves);
  const parallel::ScheduleRun run = pipelines.slowest().run;
  const auto gap = [&](int rank) {
    return run.ranks[at(rank + 1)].spans[0].start - run.ranks[at(rank)].spans[0].end;
  };
  CHECK(gap(0) == gap(2));
  CHECK(gap(0) < gap(1));
  const ExchangePrices prices(halves);
  CHECK(gap(1) == Picoseconds::from_us(prices.boundary_us(1, 2)));
  CHECK(prices.boundary_us(1, 1) == 0);
  // Where stages have six GPUs, some ranks of every stage send to another node of eight.
  const TrainingJob sixes = qwen_on_h100(24, 4, 2, 96);
  const ExchangePrices straddling(sixes);
  CHECK(straddling.boundary_us(0, 1) == prices.boundary_us(1, 2));
}

TEST_CASE("messages between stages share the uplinks of their switches") {
  TrainingJob tapered = qwen_on_h100(32, 4, 8, 64);  // a stage is a node
  const double full_us = ExchangePrices(tapered).boundary_us(0, 1);
  auto cluster = std::make_shared<cluster::Cluster>(*tapered.cluster);
  cluster->levels.front().below = 1;
  // Each rail's switch has a sixteenth of its node's NIC up.
  cluster->levels.front().uplink = Bandwidth(cluster->nic.bytes_per_second / 16);
  tapered.cluster = cluster;
  const double latency_us = cluster->nic_latency_us;
  CHECK(ExchangePrices(tapered).boundary_us(0, 1) - latency_us ==
        Approx(16 * (full_us - latency_us)));
}

TEST_CASE("a dispatcher's ranks notify each other before rows go out and before they come home") {
  TrainingJob made = qwen_on_h100(16, 1, 16, 64);
  auto silent = std::make_shared<profile::Dispatcher>(profile::Dispatcher::load("deepep"));
  made.dispatcher = std::make_shared<const profile::Dispatcher>(*silent);
  silent->notify_us[1] = 0;
  TrainingJob without = made;
  without.dispatcher = silent;
  for (const profile::MoeStage stage : {profile::MoeStage::dispatch, profile::MoeStage::combine}) {
    CHECK(ExchangePrices(made).dispatch_us(stage, {}) -
              ExchangePrices(without).dispatch_us(stage, {}) ==
          Approx(made.dispatcher->notify_us[1]));
  }
}
