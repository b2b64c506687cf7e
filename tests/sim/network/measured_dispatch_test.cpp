#include "sim/network/exchange/measured_dispatch.hpp"

#include <cmath>
#include <string>
#include <vector>

#include "sim/profile/residual.hpp"
#include "tests/support/catch.hpp"

namespace moesim::network {
namespace {

using profile::Dispatcher;
using profile::DispatcherStage;
using profile::Estimate;

constexpr const char* h100 = "NVIDIA H100 80GB HBM3";
constexpr std::int64_t hidden = 7168, top_k = 8, experts = 256;

struct Asked {
  DispatcherStage stage = DispatcherStage::dispatch;
  bool fp8 = false;
  int tokens = 4096;
  int sms = 24;
  int gpus = 16;
};

struct Machine {
  cluster::Cluster cluster = cluster::Cluster::load("hgx-h100");
  Dispatcher deepep = Dispatcher::load("deepep");

  Estimate time(const Asked& asked, const std::string& device = h100) const {
    const DispatchPlace place = dispatch_place(device, cluster, asked.gpus);
    const auto load = profile::balanced_load(deepep.sent, asked.stage, {experts, top_k, 0},
                                             place.group, static_cast<double>(asked.tokens));
    const double row =
        profile::dispatched_row_bytes(deepep, asked.stage, static_cast<double>(hidden), asked.fp8);
    return MeasuredDispatcher(deepep, place, cluster)
        .time({asked.stage, asked.fp8, row, hidden, top_k, asked.sms}, load, place.rates);
  }

  // A run of nodes of 8 GPUs that took so many times as long as the law says.
  void measure(const Asked& asked, double factor) {
    cluster::Cluster unmeasured = cluster;
    unmeasured.dispatches.clear();
    const double law_us = Machine{unmeasured, deepep}.time(asked).time_us;
    cluster.dispatches.push_back(
        {"deepep", asked.stage == DispatcherStage::dispatch ? "dispatch" : "combine",
         asked.fp8 ? "fp8" : "bf16", asked.gpus / 8, asked.gpus, asked.tokens, hidden, top_k,
         experts, asked.sms, factor * law_us, "measured: a.log", ""});
  }

  double factor(const Asked& asked) const {
    return time(asked).time_us / Machine().time(asked).time_us;
  }
};

// Logarithms of the ends of the band over the time.
double below(const Estimate& estimate) { return std::log(estimate.time_us / estimate.time_us_p05); }
double above(const Estimate& estimate) { return std::log(estimate.time_us_p95 / estimate.time_us); }

}  // namespace

TEST_CASE("every measured size and row format comes back") {
  Machine machine;
  const std::vector<std::pair<Asked, double>> runs{{{DispatcherStage::dispatch, true, 128}, 1.5},
                                                   {{DispatcherStage::dispatch, false, 128}, 1.3},
                                                   {{DispatcherStage::combine, false, 128}, 1.6},
                                                   {{DispatcherStage::dispatch, true, 4096}, 1.05},
                                                   {{DispatcherStage::dispatch, false, 4096}, 0.95},
                                                   {{DispatcherStage::combine, false, 4096}, 1.05}};
  for (const auto& [asked, factor] : runs) machine.measure(asked, factor);
  for (const auto& [asked, factor] : runs) {
    CHECK(machine.factor(asked) == Approx(factor));
    const Estimate estimate = machine.time(asked);
    CHECK(estimate.time_us_p05 / estimate.time_us == Approx(0.94));
    CHECK(estimate.time_us_p95 / estimate.time_us == Approx(1.06));
  }
}

TEST_CASE("a log scales the times of training steps as it scales those of its own test") {
  Machine machine;
  machine.cluster.nic_transport = "proxy";
  const Machine without = machine;
  machine.measure({}, 1.3);
  const auto in_training = [](const Machine& asked) {
    DispatchPlace place = dispatch_place(h100, asked.cluster, Asked().gpus);
    place.rates.in_training = true;
    const auto load = profile::balanced_load(asked.deepep.sent, DispatcherStage::dispatch,
                                             {experts, top_k, 0}, place.group, 4096);
    const double row = profile::dispatched_row_bytes(asked.deepep, DispatcherStage::dispatch,
                                                     static_cast<double>(hidden), false);
    return MeasuredDispatcher(asked.deepep, place, asked.cluster)
        .time({DispatcherStage::dispatch, false, row, hidden, top_k, 24}, load, place.rates)
        .time_us;
  };
  CHECK(in_training(without) > 2 * without.time({}).time_us);
  CHECK(in_training(machine) / in_training(without) == Approx(1.3));
}

TEST_CASE("between two measured token counts the factor is interpolated in their logarithm") {
  Machine machine;
  machine.measure({DispatcherStage::combine, false, 256}, 1.6);
  machine.measure({DispatcherStage::combine, false, 4096}, 1.0);
  CHECK(machine.factor({DispatcherStage::combine, false, 1024}) == Approx(std::sqrt(1.6)));
  CHECK(machine.factor({DispatcherStage::combine, false, 512}) == Approx(std::pow(1.6, 0.75)));
  // Two octaves from both: 2 x 2 / 4 octaves, where the law's own band is there in full.
  const Asked middle{DispatcherStage::combine, false, 1024};
  const double law = above(Machine().time(middle));
  CHECK(above(machine.time(middle)) ==
        Approx(std::hypot(std::log(1.06) * profile::widening(1), law)));
}

TEST_CASE("beyond what was measured the factor is held and the band widens") {
  Machine machine;
  machine.measure({DispatcherStage::dispatch, false, 4096}, 1.2);
  double last = 0.06;
  for (const int tokens : {8192, 16384, 65536}) {
    const Asked asked{DispatcherStage::dispatch, false, tokens};
    CHECK(machine.factor(asked) == Approx(1.2));
    CHECK(above(machine.time(asked)) > last);
    last = above(machine.time(asked));
  }
  // A machine whose rows alone take 1.2 times as long takes about the law's time at few tokens.
  const Asked few{DispatcherStage::dispatch, false, 8};
  const Estimate law = Machine().time(few), estimate = machine.time(few);
  CHECK(estimate.time_us_p05 < law.time_us);
  CHECK(below(estimate) >= below(law));
  CHECK(above(estimate) >= above(law));
  // A third of an octave away a third of the law's squared band has joined.
  const Asked near{DispatcherStage::dispatch, false, 4096, 30};
  const double octaves = std::log2(30 / 24.0);
  CHECK(above(machine.time(near)) ==
        Approx(std::hypot(std::log(1.06) * profile::widening(octaves),
                          std::sqrt(octaves) * above(Machine().time(near)))));
}

TEST_CASE("SM counts are interpolated at each measured token count, and held beyond") {
  Machine machine;
  for (const int tokens : {128, 4096}) {
    machine.measure({DispatcherStage::dispatch, false, tokens, 16}, 1.44);
    machine.measure({DispatcherStage::dispatch, false, tokens, 64}, 1.0);
  }
  const auto factor = [&](int tokens, int sms) {
    return machine.factor({DispatcherStage::dispatch, false, tokens, sms});
  };
  CHECK(factor(4096, 16) == Approx(1.44));
  CHECK(factor(4096, 32) == Approx(1.2));
  CHECK(factor(700, 32) == Approx(1.2));
  CHECK(factor(4096, 8) == Approx(1.44));
  const Asked half{DispatcherStage::dispatch, false, 4096, 8};
  CHECK(below(machine.time(half)) >= below(Machine().time(half)));
  // One token count was measured with other SMs alone: these are nearer than other tokens.
  machine.measure({DispatcherStage::dispatch, false, 4096, 20}, 2.0);
  CHECK(factor(128, 20) < 1.44);
}

TEST_CASE("entries of the row format come first, the other one's have a wider band") {
  Machine machine;
  machine.measure({DispatcherStage::dispatch, true, 4096}, 1.25);
  const Asked bf16{DispatcherStage::dispatch, false, 4096};
  CHECK(machine.factor(bf16) == Approx(1.25));
  CHECK(below(machine.time(bf16)) >= below(Machine().time(bf16)));
  machine.measure({DispatcherStage::dispatch, false, 512}, 1.0);
  CHECK(machine.factor(bf16) == Approx(1.0));
  CHECK(machine.factor({DispatcherStage::dispatch, true, 4096}) == Approx(1.25));
}

TEST_CASE("repeats have their geometric mean, and a band that holds all") {
  Machine machine;
  machine.measure({DispatcherStage::combine}, 1.0);
  machine.measure({DispatcherStage::combine}, 1.44);
  const Estimate estimate = machine.time({DispatcherStage::combine});
  CHECK(machine.factor({DispatcherStage::combine}) == Approx(1.2));
  CHECK(estimate.time_us_p95 / estimate.time_us == Approx(1.2));
  CHECK(estimate.time_us_p05 / estimate.time_us == Approx(1 / 1.2));
  // A measurement at another hidden size, which is farther.
  machine.measure({DispatcherStage::combine}, 1.2);
  machine.cluster.dispatches.back().hidden = 2 * hidden;
  CHECK(machine.factor({DispatcherStage::combine}) == Approx(1.2));
  CHECK(machine.time({DispatcherStage::combine}).time_us_p95 == Approx(estimate.time_us_p95));
}

TEST_CASE("what was measured on one architecture does not answer for another") {
  Machine machine;
  const Asked combine{DispatcherStage::combine};
  machine.measure(combine, 1.3);
  const auto factor_on = [&](const std::string& device) {
    return machine.time(combine, device).time_us / Machine().time(combine, device).time_us;
  };
  CHECK(factor_on("NVIDIA B200") > 1);
  machine.cluster.dispatches.back().gpu = "H800";
  CHECK(factor_on(h100) == Approx(1.3));
  CHECK(factor_on("NVIDIA H200") == Approx(1.3));
  CHECK(factor_on("NVIDIA B200") == 1);
  machine.cluster.dispatches.back().gpu = "A100";
  CHECK(factor_on(h100) == 1);
}

TEST_CASE("half of a factor carries over to other numbers of nodes") {
  Machine machine;
  const DispatcherStage stage = DispatcherStage::dispatch;
  machine.measure({stage, false, 4096}, 1.5);
  for (const int gpus : {32, 64}) {
    const Asked asked{stage, false, 4096, 24, gpus};
    CHECK(machine.factor(asked) == Approx(std::sqrt(1.5)));
    const Estimate law = Machine().time(asked), estimate = machine.time(asked);
    // From the law to the whole factor.
    const double half = std::log(1.5) / 2;
    const double spread = std::log(1.06) * profile::widening(std::log2(gpus / 16));
    CHECK(above(estimate) == Approx(std::hypot(spread, above(law), half)));
    CHECK(estimate.time_us_p95 > 1.5 * law.time_us);
    CHECK(estimate.time_us_p05 < law.time_us);
    const MeasuredDispatcher measured(machine.deepep, dispatch_place(h100, machine.cluster, gpus),
                                      machine.cluster);
    CHECK(!measured.knows(stage));
    CHECK_THAT(measured.provenance(24),
               ContainsSubstring("half of the factor on 2 nodes (measured: a.log), over "));
  }
  // The other stage and the inside of a node stay the law's.
  CHECK(machine.factor({DispatcherStage::combine, false, 4096, 24, 32}) == 1);
  CHECK(machine.factor({stage, false, 4096, 24, 8}) == 1);
  CHECK(machine.factor({stage, false, 4096}) == Approx(1.5));
  // The nearest number of nodes, of two as near the larger; inside a node says nothing of NICs.
  machine.measure({stage, false, 4096, 24, 128}, 0.8);
  CHECK(machine.factor({stage, false, 4096, 24, 32}) == Approx(std::sqrt(1.5)));
  CHECK(machine.factor({stage, false, 4096, 24, 64}) == Approx(std::sqrt(0.8)));
  machine.measure({stage, false, 4096, 24, 64}, 0.9);
  CHECK(machine.factor({stage, false, 4096, 24, 32}) == Approx(std::sqrt(0.9)));
  // Domains of unequal numbers of GPUs: the law does not know them.
  Machine uneven;
  uneven.measure({stage, false, 4096}, 1.5);
  uneven.cluster.gpus_per_domain = 16;
  uneven.cluster.dispatches.back().nodes = 3;
  uneven.cluster.dispatches.back().gpus = 24;
  CHECK(uneven.time({stage, false, 4096, 24, 64}).time_us > 0);
  Machine inside;
  inside.measure({stage, false, 4096, 24, 8}, 1.5);
  CHECK(inside.factor({stage, false, 4096}) == 1);
  CHECK(inside.factor({stage, false, 4096, 24, 8}) == Approx(1.5));
}

}  // namespace moesim::network
