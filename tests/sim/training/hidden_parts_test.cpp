#include <numeric>

#include "sim/training/step/training_step.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/training_job.hpp"

using namespace moesim;
using namespace moesim::training;

namespace {

TrainingJob shared_weights(int zero, std::int64_t micro_batch) {
  TrainingJob made = qwen_on_h100(64, 1, 8, 512);
  made.layout.micro_batch = micro_batch;
  made.states.zero = zero;
  return made;
}

// What is left of gathering a layer's weights in its forward pass.
double gather_us(TrainingJob made, double hidden_share) {
  made.hidden_share = hidden_share;
  return LayerPrices(made).layer(true).forward[at(TrainingPart::parameters)];
}

}  // namespace

TEST_CASE("a gather is left as far as the share of the computing beside it does not hide it") {
  const TrainingJob small = shared_weights(3, 1);
  const double alone = gather_us(small, 0);
  const double beside = (alone - gather_us(small, 0.25)) / 0.25;
  REQUIRE(beside > 0);
  CHECK(gather_us(small, 0.5) == Approx(alone - 0.5 * beside));
  // The longer of both.
  CHECK(gather_us(small, 1) + beside == Approx(std::max(alone, beside)));
  CHECK(gather_us(shared_weights(3, 8), 1) == 0);
}

TEST_CASE("the step with all exchanges of shared weights hidden") {
  for (const int zero : {2, 3}) {
    const TrainingJob job = shared_weights(zero, 1);
    TrainingStep step = training_step(job);
    CHECK(hidden_gain(step) == 0);
    const TrainingStep before = step;
    add_hidden_parts(job, step);
    REQUIRE(step.hidden_parts);
    TrainingJob all = job;
    all.hidden_share = 1;
    const TrainingStep hidden = training_step(all);
    CHECK(sum(*step.hidden_parts) == Approx(hidden.step_us));
    CHECK(hidden_gain(step) == Approx(std::log(step.step_us / hidden.step_us)));
    CHECK(hidden_gain(step) > 0.1);
    CHECK(step.step_us == before.step_us);
    CHECK(step.parts == before.parts);
  }
}

TEST_CASE("nothing is priced again where weights and gradients are exchanged once per step") {
  const TrainingJob once = shared_weights(1, 1);
  TrainingStep step = training_step(once);
  add_hidden_parts(once, step);
  CHECK(!step.hidden_parts);
  CHECK(hidden_gain(step) == 0);
}

TEST_CASE("computing hides nothing of exchanges that are not to be overlapped") {
  TrainingJob job = shared_weights(3, 1);
  job.overlaps_gradients = job.overlaps_parameters = false;
  TrainingStep step = training_step(job);
  add_hidden_parts(job, step);
  CHECK(hidden_gain(step) == 0);
}
