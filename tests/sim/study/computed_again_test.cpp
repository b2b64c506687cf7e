#include "sim/study/explain/computed_again.hpp"

#include "tests/support/catch.hpp"

using namespace moesim;
using study::KernelKind;
using study::KernelSum;

namespace {

constexpr int layers = 10;

// Of each layer and pass attention 3 us, an exchange 2 us, experts 1 us, an exchange 2 us; the
// backward pass takes twice as long but for exchanges.
engine::Timeline simulated(int forward_passes) {
  engine::Timeline timeline;
  double now_us = 0;
  const auto add = [&](const char* stream, const char* name, const char* part, double us) {
    engine::TimelineEvent event;
    event.stream = stream;
    event.name = name;
    event.category = part;
    event.start = Picoseconds::from_us(now_us);
    event.duration = Picoseconds::from_us(us);
    timeline.push_back(event);
    now_us += us;
  };
  const auto forward = [&] {
    add("compute", "attention", "attention", 3);
    add("communication", "all_to_all", "exposed_exchange", 2);
    add("compute", "expert_ffn", "expert", 1);
    add("communication", "all_to_all", "exposed_exchange", 2);
    add("compute", "combine", "dispatch_combine", 0.5);
  };
  for (int layer = 0; layer < layers; ++layer) forward();
  for (int layer = 0; layer < layers; ++layer) {
    for (int pass = 1; pass < forward_passes; ++pass) forward();
    add("compute", "combine_backward", "dispatch_combine", 0.5);
    add("communication", "all_to_all", "exposed_exchange", 2);
    add("compute", "expert_ffn_backward", "expert", 2);
    add("communication", "all_to_all", "exposed_exchange", 2);
    add("compute", "attention_backward", "attention", 6);
  }
  return timeline;
}

// Names of FlashAttention, CUTLASS and NCCL, of which only attention's say the pass.
study::TracedStep traced(int attention_passes, int exchanges) {
  study::TracedStep step;
  step.kernels = {
      {"void flash_fwd_kernel<128>", KernelKind::attention, layers * attention_passes, 1},
      {"void flash_bwd_dot_do_o_kernel<128>", KernelKind::attention, layers, 1},
      {"void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<128>", KernelKind::attention, layers, 1},
      {"void flash_bwd_convert_dq_kernel<128>", KernelKind::attention, layers, 1},
      {"void cutlass::Kernel<GemmGrouped>", KernelKind::expert, 6 * layers, 1},
      {"ncclDevKernel_SendRecv", KernelKind::exposed_exchange, exchanges, 1}};
  step.exchanges = exchanges;
  return step;
}

double more(const study::ComputedAgain& again, KernelKind kind) {
  return again.more_ms[static_cast<std::size_t>(kind)];
}

}  // namespace

TEST_CASE("forward over backward calls say that forward passes are computed again") {
  const auto again = study::computed_again(simulated(1), traced(2, 6 * layers));
  REQUIRE(again);
  CHECK(again->is_more);
  CHECK(again->is_whole);
  CHECK(again->is_every);
  // All that the simulated forward pass takes, once more.
  CHECK(more(*again, KernelKind::attention) == Approx(layers * 3e-3));
  CHECK(more(*again, KernelKind::exposed_exchange) == Approx(layers * 4e-3));
  CHECK(more(*again, KernelKind::expert) == Approx(layers * 1e-3));
  CHECK(more(*again, KernelKind::dispatch_combine) == Approx(layers * 0.5e-3));
  CHECK(again->total_ms() == Approx(layers * 8.5e-3));
  REQUIRE(again->calls.size() == 2);
  CHECK(again->calls[0].measured == 2 * layers);
  CHECK(again->calls[0].expected == layers);
  CHECK(again->calls[1].measured == 6 * layers);
  CHECK(again->calls[1].expected == 4 * layers);
}

TEST_CASE("forward passes that were to be computed again and were not") {
  const auto again = study::computed_again(simulated(2), traced(1, 4 * layers));
  REQUIRE(again);
  CHECK_FALSE(again->is_more);
  CHECK(again->is_whole);
  CHECK(again->total_ms() == Approx(layers * -8.5e-3));
}

TEST_CASE("attention alone is computed again where exchanges are not") {
  const auto again = study::computed_again(simulated(1), traced(2, 4 * layers));
  REQUIRE(again);
  CHECK_FALSE(again->is_whole);
  CHECK(again->total_ms() == Approx(layers * 3e-3));
  CHECK(more(*again, KernelKind::attention) == Approx(layers * 3e-3));
}

TEST_CASE("as many forward as backward calls are no recomputation, however many there are") {
  CHECK_FALSE(study::computed_again(simulated(1), traced(1, 4 * layers)));
  CHECK_FALSE(study::computed_again(simulated(1), traced(1, 6 * layers)));  // probabilities too
  study::TracedStep twice = traced(1, 8 * layers);  // of half the micro-batch each
  for (KernelSum& kernel : twice.kernels) kernel.calls *= 2;
  CHECK_FALSE(study::computed_again(simulated(1), twice));
  study::TracedStep unnamed = traced(2, 6 * layers);
  std::erase_if(unnamed.kernels,
                [](const KernelSum& kernel) { return kernel.kind == KernelKind::attention; });
  CHECK_FALSE(study::computed_again(simulated(1), unnamed));
}

TEST_CASE("large exchanges and the time of experts between exchanges") {
  const study::KernelClass expert{KernelKind::expert, false};
  const study::KernelClass exchange{KernelKind::exposed_exchange, true};
  const std::vector<study::Bar> bars = {{0, 10, exchange},  {40, 45, expert},     {30, 40, expert},
                                        {50, 60, exchange}, {60, 60.5, exchange}, {70, 72, expert}};
  CHECK(study::large_exchanges(bars) == 2);
  CHECK(study::expert_times(bars) == std::vector<double>{0, 15, 0, 2});
}
