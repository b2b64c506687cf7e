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
    return ExchangePrices(asked).dispatch_us(profile::DispatcherStage::dispatch, {});
  };
  // The same 8 GPUs. 128 experts, k 8: a token meets 5.339 of 8 ranks; of 4 pairs 3.64, so 7.28.
  CHECK(dispatch(sliced) / dispatch(whole) == Approx(7.28 / 5.339).epsilon(0.1));
  // No gathering of rows and no reduction besides, as an all-to-all of one slice needs.
  CHECK(part(training_step(sliced), TrainingPart::tensor) == 0);
  TrainingJob nccl = sliced;
  nccl.dispatcher = nullptr;
  CHECK(part(training_step(nccl), TrainingPart::tensor) > 0);
}

// Megatron-Core's all-gather dispatcher: 8 ranks of 4096 tokens of 2048 values in bf16, with 128
// probabilities of 4 bytes and marks of 1 byte each, to all; outputs alone home.
TEST_CASE("gathered tokens are collectives of all tokens, whatever their experts are") {
  TrainingJob job = qwen_on_h100(8, 1, 8, 8);
  job.gathers_tokens = true;
  const ExchangePrices prices(job);
  const auto among = [&](profile::Collective kind, double bytes) {
    return prices.exchange_us(kind, parallel::GroupKind::expert, bytes);
  };
  using enum profile::Collective;
  const double tokens = 8 * 4096;
  const double there = among(all_gather, tokens * 2048 * 2) + among(all_gather, tokens * 128 * 4) +
                       among(all_gather, tokens * 128);
  const double back = among(reduce_scatter, tokens * 2048 * 2);
  for (const double load : {1.0, 1.5}) {
    const MoeLoad uneven{.computed = load, .exchanged = load};
    CHECK(prices.dispatch_us(profile::DispatcherStage::dispatch, uneven) == Approx(there));
    CHECK(prices.dispatch_us(profile::DispatcherStage::combine, uneven) == Approx(back));
  }
  CHECK(prices.dispatch_us(profile::DispatcherStage::dispatch, {.exchanged = 0}) == 0);
  // Gradients of outputs go to all ranks, those of tokens and probabilities home; marks have none.
  CHECK(prices.dispatch_gradient_us(profile::DispatcherStage::combine, {}) ==
        Approx(among(all_gather, tokens * 2048 * 2)));
  CHECK(prices.dispatch_gradient_us(profile::DispatcherStage::dispatch, {}) ==
        Approx(back + among(reduce_scatter, tokens * 128 * 4)));
  CHECK(prices.dispatch_gradient_us(profile::DispatcherStage::dispatch, {.exchanged = 0}) == 0);
  // Slices of an expert are among the ranks that gather: no exchange of theirs besides.
  TrainingJob sliced = job;
  sliced.layout.sizes.expert = 4;
  sliced.layout.sizes.expert_tensor = 2;
  CHECK(ExchangePrices(sliced).dispatch_us(profile::DispatcherStage::combine, {}) == Approx(back));
  CHECK(part(training_step(sliced), TrainingPart::tensor) == 0);
}

TEST_CASE("gathered tokens and their outputs wait in buffers of all ranks") {
  TrainingJob job = qwen_on_h100(8, 1, 8, 8);
  const double rows = training_step(job).memory.front().exchange_buffers.gib();
  job.gathers_tokens = true;
  const double tokens = training_step(job).memory.front().exchange_buffers.gib();
  // 4 k T' h bytes of an all-to-all, 4 n T' h of gathered tokens: k and n are 8, and rows are as
  // uneven as random logits make them.
  CHECK(tokens == Approx(4.0 * 8 * 4096 * 2048 / (1 << 30)));
  CHECK(rows > tokens);
  CHECK(rows < 1.1 * tokens);
}

// 4096 tokens of top-8 of 128 experts on two nodes: each but 0.3 % has a row on the other node.
TEST_CASE("rows to other nodes cost a CPU proxy as much as in public training steps") {
  TrainingJob job = qwen_on_h100(16, 1, 16, 16);
  job.dispatcher = std::make_shared<const profile::Dispatcher>(profile::Dispatcher::load("deepep"));
  const auto dispatch = [&](const char* name) {
    job.cluster = std::make_shared<const cluster::Cluster>(cluster::Cluster::load(name));
    return ExchangePrices(job).dispatch_us(profile::DispatcherStage::dispatch, {});
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
    return ExchangePrices(placed).dispatch_us(profile::DispatcherStage::dispatch, {});
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
  for (const profile::DispatcherStage stage :
       {profile::DispatcherStage::dispatch, profile::DispatcherStage::combine}) {
    CHECK(ExchangePrices(made).dispatch_us(stage, {}) -
              ExchangePrices(without).dispatch_us(stage, {}) ==
          Approx(made.dispatcher->notify_us[1]));
  }
}
