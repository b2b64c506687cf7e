#include "sim/training/step/training_step.hpp"

#include <numeric>

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/training_job.hpp"

using namespace moesim;
using namespace moesim::training;

TEST_CASE("the busiest rank of random logits has the excess that draws show") {
  // Means of 20 to 40 draws at 4,096 tokens a rank.
  CHECK(random_imbalance(256, 8, 32, 4096) == Approx(1.012).epsilon(0.002));
  CHECK(random_imbalance(256, 8, 64, 4096) == Approx(1.012).epsilon(0.002));
  CHECK(random_imbalance(128, 8, 8, 4096) == Approx(1.007).epsilon(0.002));
  CHECK(random_imbalance(128, 8, 1, 4096) == 1);
  // Four times the tokens: half the excess.
  CHECK(random_imbalance(128, 8, 8, 4 * 4096) - 1 ==
        Approx((random_imbalance(128, 8, 8, 4096) - 1) / 2));
}

TEST_CASE("the parts of a step add up to it") {
  for (const int pipeline : {1, 4}) {
    const TrainingStep step = training_step(qwen_on_h100(32, pipeline, 8, 256));
    CHECK(std::accumulate(step.parts.begin(), step.parts.end(), 0.0) == Approx(step.step_us));
    for (const double each : step.parts) CHECK(each >= 0);
  }
}

TEST_CASE("mean parts are those of all pipeline ranks, and add up to the step") {
  const TrainingJob job = qwen_on_h100(32, 4, 8, 64);
  const TrainingStep step = training_step(job);
  const PartTimes mean = mean_parts(job, step);
  CHECK(sum(mean) == Approx(step.step_us));
  // As many micro-batches on one rank: each part of the layers and both ends, four times as much.
  const TrainingStep alone = training_step(qwen_on_h100(8, 1, 8, 64));
  REQUIRE(alone.micro_batches == step.micro_batches);
  for (const TrainingPart each :
       {TrainingPart::attention, TrainingPart::experts, TrainingPart::head}) {
    CHECK(4 * mean[static_cast<std::size_t>(each)] == Approx(part(alone, each)));
  }
  // The head is on the last rank alone, here the one that computes longest.
  CHECK(mean[static_cast<std::size_t>(TrainingPart::head)] < 0.5 * part(step, TrainingPart::head));
  const PartTimes of_one = mean_parts(qwen_on_h100(8, 1, 8, 64), alone);
  for (std::size_t each = 0; each < of_one.size(); ++each) {
    CHECK(of_one[each] == Approx(alone.parts[each]).margin(1e-6));
  }
}

TEST_CASE("without pipeline a step is its micro-batches and its end") {
  const TrainingStep few = training_step(qwen_on_h100(8, 1, 8, 64));
  const TrainingStep many = training_step(qwen_on_h100(8, 1, 8, 128));
  CHECK(few.micro_batches == 8);
  CHECK(many.micro_batches == 16);
  CHECK(few.bubble_share == 0);
  const auto end = [](const TrainingStep& step) {
    return part(step, TrainingPart::gradients) + part(step, TrainingPart::parameters) +
           part(step, TrainingPart::optimizer);
  };
  CHECK(end(few) > 0);
  CHECK(end(many) == Approx(end(few)));
  CHECK(many.step_us - end(many) == Approx(2 * (few.step_us - end(few))));
}

TEST_CASE("more pipeline ranks with as many micro-batches leave a larger bubble") {
  const TrainingStep two = training_step(qwen_on_h100(16, 2, 8, 64));
  const TrainingStep four = training_step(qwen_on_h100(32, 4, 8, 64));
  CHECK(two.micro_batches == four.micro_batches);
  CHECK(two.bubble_share > 0);
  CHECK(four.bubble_share > two.bubble_share);
}

TEST_CASE("a step has the tokens, FLOPs and speed of its batch") {
  const TrainingStep step = training_step(qwen_on_h100(16, 2, 8, 64));
  CHECK(step.tokens == 64 * 4096);
  CHECK(step.flops.total == Approx(23.006e9).epsilon(1e-4));  // Megatron's definition, s 4,096
  CHECK(step.tokens_per_second_per_gpu == Approx(step.tokens / (step.step_us * 1e-6) / 16));
  CHECK(step.tflops_per_gpu == Approx(step.tokens_per_second_per_gpu * step.flops.total * 1e-12));
  CHECK(step.mfu > 0);
  CHECK(step.mfu < 1);
}

TEST_CASE("recomputed work takes time and frees memory") {
  const TrainingStep kept = training_step(qwen_on_h100(8, 1, 8, 64));
  TrainingJob again = qwen_on_h100(8, 1, 8, 64);
  again.recompute = model::parse_recompute("full", "test");
  const TrainingStep recomputed = training_step(again);
  CHECK(part(kept, TrainingPart::recompute) == 0);
  CHECK(part(recomputed, TrainingPart::recompute) > 0);
  CHECK(recomputed.step_us > kept.step_us);
  CHECK(recomputed.peak_memory() < kept.peak_memory());
}

TEST_CASE("a slow host makes small micro-batches wait, graphs do not") {
  TrainingJob slow = qwen_on_h100(8, 1, 8, 64);
  const double fast_us = training_step(slow).step_us;
  slow.host.launch_us = 100;
  const TrainingStep waiting = training_step(slow);
  CHECK(part(waiting, TrainingPart::host) > 0);
  CHECK(waiting.step_us > 1.5 * fast_us);
  slow.graphs = Graphs::layers;
  slow.capacity_factor = 1;
  CHECK(part(training_step(slow), TrainingPart::host) == 0);
}

TEST_CASE("a factor on the host is one on each launch and read, and its gain their slope") {
  TrainingJob typed = qwen_on_h100(8, 1, 8, 64);
  TrainingJob scaled = typed;
  typed.host.launch_us *= 3;
  typed.host.sync_us *= 3;
  scaled.host.factor = 3;
  CHECK(training_step(scaled).step_us == Approx(training_step(typed).step_us));
  // Beyond 3 times all that launches take is waited for: what is left of the factor is a line.
  const double step_us = training_step(scaled).step_us;
  TrainingJob further = scaled;
  further.host.factor = 4;
  const double line_us = 3 * (training_step(further).step_us - step_us);
  CHECK(host_gain_us(scaled, 0.01) == Approx(line_us).epsilon(0.001));
  // From both sides of where a wait begins the gain holds a part of it.
  TrainingJob fast = typed;
  fast.host = {0.5, 0, 2000};
  CHECK(host_gain_us(fast, 0.1) == Approx(0).margin(1e-3));
  CHECK(host_gain_us(fast, 4) > 0);
  fast.graphs = Graphs::layers;
  fast.capacity_factor = 1;
  CHECK(host_gain_us(fast, 4) == Approx(0).margin(1e-3));
}

TEST_CASE("overlapped exchanges of experts shorten a step across nodes") {
  TrainingJob apart = qwen_on_h100(32, 1, 32, 256);
  const TrainingStep exposed = training_step(apart);
  apart.layout.expert_overlap = true;
  const TrainingStep hidden = training_step(apart);
  CHECK(hidden.step_us < exposed.step_us);
  CHECK(part(hidden, TrainingPart::dispatch) < part(exposed, TrainingPart::dispatch));
}

TEST_CASE("an exchange that NCCL hides takes 32 of 132 SMs from what hides it") {
  TrainingJob apart = qwen_on_h100(8, 1, 8, 64);
  const TrainingStep exposed = training_step(apart);
  apart.layout.expert_overlap = true;
  const TrainingStep hidden = training_step(apart);
  const double exchange_us =
      part(exposed, TrainingPart::dispatch) + part(exposed, TrainingPart::combine);
  // All exchanges of eight micro-batches are hidden but those of the first forward and the last
  // backward pass.
  CHECK(exposed.step_us - hidden.step_us == Approx(7.0 / 8 * 100 / 132 * exchange_us));
  apart.exchange_sms = 16;
  const TrainingStep fewer = training_step(apart);
  CHECK(exposed.step_us - fewer.step_us == Approx(7.0 / 8 * 116 / 132 * exchange_us));
}

TEST_CASE("tensor parallelism adds exchanges inside the node and divides the rest") {
  TrainingJob divided = qwen_on_h100(16, 1, 8, 64);
  divided.layout.sizes.tensor = 2;
  const TrainingStep step = training_step(divided);
  CHECK(part(step, TrainingPart::tensor) > 0);
  CHECK(step.micro_batches == 8);
  const TrainingStep whole = training_step(qwen_on_h100(16, 1, 8, 64));
  CHECK(part(whole, TrainingPart::tensor) == 0);
  // A micro-batch's attention on two GPUs: between half the time and all of it.
  const double ratio = part(step, TrainingPart::attention) / step.micro_batches /
                       (part(whole, TrainingPart::attention) / whole.micro_batches);
  CHECK(ratio > 0.5);
  CHECK(ratio < 0.75);
}

TEST_CASE("padded experts compute their capacity, others their balance") {
  TrainingJob padded = qwen_on_h100(8, 1, 8, 64);
  const double dropless = part(training_step(padded), TrainingPart::experts);
  padded.capacity_factor = 2;
  CHECK(part(training_step(padded), TrainingPart::experts) > 1.5 * dropless);
}

TEST_CASE("what cannot be is refused with its reason") {
  TrainingJob bad = qwen_on_h100(12, 1, 8, 64);
  CHECK_THROWS_AS(training_step(bad), UsageError);
  TrainingJob instances = qwen_on_h100(16, 1, 8, 64);
  instances.states.optimizer_instances = 3;
  CHECK_THROWS_WITH(training_step(instances),
                    ContainsSubstring("--optimizer-instances 3") && ContainsSubstring("16"));
  instances.states.optimizer_instances = 2;
  instances.states.zero = 0;
  CHECK_THROWS_WITH(training_step(instances), ContainsSubstring("--zero 0"));
  TrainingJob copies = qwen_on_h100(16, 1, 8, 64);
  copies.redundant_experts = 8;
  CHECK_THROWS_WITH(training_step(copies), ContainsSubstring("--redundant-experts 8"));
}

TEST_CASE("DualPipe hides exchanges and has its weights twice, the optimizer's states once") {
  TrainingJob once = qwen_on_h100(32, 4, 8, 256);
  TrainingJob dual = once;
  dual.layout.schedule = parallel::ScheduleKind::dualpipe;
  const TrainingStep plain = training_step(once);
  const TrainingStep both = training_step(dual);
  CHECK(part(both, TrainingPart::dispatch) < part(plain, TrainingPart::dispatch));
  const auto sum_of = [](const TrainingStep& step, Bytes model::StageMemory::*what) {
    double sum = 0;
    for (const model::StageMemory& rank : step.memory) {
      sum += static_cast<double>((rank.*what).count);
    }
    return sum;
  };
  using model::StageMemory;
  CHECK(sum_of(both, &StageMemory::weights) == 2 * sum_of(plain, &StageMemory::weights));
  CHECK(sum_of(both, &StageMemory::gradients) == 2 * sum_of(plain, &StageMemory::gradients));
  CHECK(sum_of(both, &StageMemory::optimizer) ==
        Approx(sum_of(plain, &StageMemory::optimizer)).epsilon(1e-9));
  // Gradients are cleared twice: 4 bytes each, whatever is shared.
  CHECK(part(both, TrainingPart::optimizer) > part(plain, TrainingPart::optimizer));
  CHECK(part(both, TrainingPart::optimizer) < 1.2 * part(plain, TrainingPart::optimizer));
}
