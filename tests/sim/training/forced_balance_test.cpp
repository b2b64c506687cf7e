#include "tests/support/catch.hpp"
#include "tests/support/drawn_job.hpp"

using namespace moesim;
using namespace moesim::training;

TEST_CASE("random logits have the busiest rank and expert that independent draws show") {
  // Means of 20 to 40 draws at 4,096 tokens a rank.
  struct Known {
    const char* model;
    int expert;
    double rank, expert_load;
  };
  for (const Known& known :
       {Known{"deepseek-v3", 32, 1.012, 1.044}, Known{"deepseek-v3", 64, 1.012, 1.030},
        Known{"qwen3-30b-a3b", 8, 1.007, 1.054}}) {
    TrainingJob job = job_of(known.model, known.expert, 1, known.expert, 4);
    job.routing = drawn("dropless", nullptr, "gaussian:0", per_micro_batch);
    const RoutingFigures figures = DrawnLoads(job).figures();
    CHECK(figures.mean_load == Approx(known.rank).epsilon(0.001));
    CHECK(figures.mean_expert_load == Approx(known.expert_load).epsilon(0.003));
    CHECK(figures.mean_load ==
          Approx(random_imbalance(job.model->moe->experts, 8, known.expert, 4096)).epsilon(0.002));
    CHECK(figures.draws == 4 * job.model->moe_layers());
  }
}

TEST_CASE("balanced blocks cost what forced balance costs, to the bit") {
  for (const RoutingDraws draws : {RoutingDraws::per_layer, per_micro_batch}) {
    const TrainingStep step =
        with(job_of("qwen3-30b-a3b", 64, 2, 8, 8), drawn("topk", "1", "gaussian:0.1", draws));
    CHECK(step.routing->capacity == 256);  // ceil(1 x 8 x 4096 / 128)
    CHECK(step.imbalance == 1);
    CHECK(step.routing->loss.failed > 0.02);
    CHECK(step.step_us == Approx(step.balanced_step_us).epsilon(1e-12));
    TrainingJob padded = job_of("qwen3-30b-a3b", 64, 2, 8, 8);
    padded.capacity_factor = 1;
    CHECK(step.step_us == Approx(training_step(padded).step_us).epsilon(1e-12));
  }
}

TEST_CASE("a step that was asked for without forced balance is given it later") {
  for (const char* factor : {"1", static_cast<const char*>(nullptr)}) {
    TrainingJob job = job_of("qwen3-30b-a3b", 64, 2, 8, 8);
    job.routing = drawn(factor == nullptr ? "dropless" : "topk", factor, "gaussian:0.2",
                        RoutingDraws::per_layer);
    const TrainingStep whole = training_step(job);
    TrainingStep step = training_step(job, nullptr, false);
    CHECK(step.balanced_step_us == 0);
    add_forced_step(job, step);
    CHECK(step.step_us == whole.step_us);
    CHECK(step.balanced_step_us == whole.balanced_step_us);
    CHECK(step.balanced_parts == whole.balanced_parts);
  }
}

TEST_CASE("forced balance launches the kernels of a router that fills padding in") {
  TrainingJob job = job_of("qwen3-30b-a3b", 64, 2, 8, 8);
  job.host.launch_us = 60;  // the host limits every layer
  const TrainingStep plain = with(job, drawn("topk", "1", "gaussian:0.1", per_micro_batch));
  const TrainingStep filled = with(job, drawn("topk+fr", "1", "gaussian:0.1", per_micro_batch));
  CHECK(filled.step_us > 1.01 * plain.step_us);
  CHECK(filled.step_us == Approx(filled.balanced_step_us).epsilon(1e-12));
}

TEST_CASE("random logits cost what forced balance costs, within the spread of draws") {
  const TrainingStep step = with(job_of("qwen3-30b-a3b", 64, 2, 8, 8),
                                 drawn("dropless", nullptr, "gaussian:0", per_micro_batch));
  CHECK(step.step_us == Approx(step.balanced_step_us).epsilon(0.002));
  const TrainingStep skewed = with(job_of("qwen3-30b-a3b", 64, 2, 8, 8),
                                   drawn("dropless", nullptr, "gaussian:0.2", per_micro_batch));
  CHECK(skewed.step_us > 1.02 * skewed.balanced_step_us);
  CHECK(skewed.balanced_step_us == step.balanced_step_us);
}

TEST_CASE("random logits cost what forced balance costs under any capacity") {
  TrainingJob job = job_of("qwen3-30b-a3b", 64, 2, 8, 8);
  model::Model small = *job.model;
  small.layers = 4;
  job.model = std::make_shared<const model::Model>(small);
  const auto deepep =
      std::make_shared<const profile::Dispatcher>(profile::Dispatcher::load("deepep"));
  const auto both = [](const TrainingJob& asked, DrawnRouting routing) {
    const TrainingStep random = with(asked, routing);
    CHECK(random.step_us == Approx(random.balanced_step_us).epsilon(1e-9));
    routing.scores = routing::parse_score_source("gaussian:0.3", "test");
    TrainingStep skewed = with(asked, routing);
    CHECK(skewed.balanced_step_us == Approx(random.step_us).epsilon(1e-9));
    return skewed;
  };
  for (const auto& dispatcher : {std::shared_ptr<const profile::Dispatcher>(), deepep}) {
    job.dispatcher = dispatcher;
    for (const char* router : {"topk", "topk+fr+ir"}) {
      for (const char* factor : {"0.75", "4"}) {
        for (const routing::Padding padding :
             {routing::Padding::capacity, routing::Padding::none}) {
          for (const routing::CapacityScope scope :
               {routing::CapacityScope::source, routing::CapacityScope::group}) {
            CAPTURE(dispatcher != nullptr, router, factor, padding, scope);
            DrawnRouting routing = drawn(router, factor, "gaussian:0");
            routing.router.padding = padding;
            routing.router.capacity_scope = scope;
            both(job, routing);
          }
        }
      }
    }
    DrawnRouting busiest = drawn("dropless", nullptr, "gaussian:0");
    busiest.router.padding = routing::Padding::busiest;
    const TrainingStep longest = both(job, busiest);
    // A capacity that nothing reaches, of a group: the same blocks.
    DrawnRouting roomy = drawn("topk", "16", "gaussian:0");
    roomy.router.capacity_scope = routing::CapacityScope::group;
    const TrainingStep group = both(job, roomy);
    CHECK(group.step_us == Approx(longest.step_us).epsilon(1e-9));
    CHECK(group.step_us > 1.1 * group.balanced_step_us);
    CHECK(group.routing->loss.padded == Approx(longest.routing->loss.padded));
    CHECK(group.routing->loss.padded > 0.5);
  }
}

TEST_CASE("forced balance has none of what a hash makes popular, and skips the same exchanges") {
  const TrainingJob job = job_of("qwen3-30b-a3b", 64, 2, 8, 8);
  DrawnRouting hash = drawn("hash", "1", "gaussian:0");
  hash.router.capacity_scope = routing::CapacityScope::group;
  const TrainingStep hashed = with(job, hash);
  DrawnRouting random = drawn("random", "1", "gaussian:0");
  random.router.capacity_scope = routing::CapacityScope::group;
  CHECK(hashed.balanced_step_us == Approx(with(job, random).step_us).epsilon(1e-9));
  CHECK(hashed.step_us > 1.1 * hashed.balanced_step_us);
  TrainingJob few = job_of("qwen3-30b-a3b", 16, 1, 8, 2);
  few.layout.sequence_length = 512;
  DrawnRouting dropout = drawn("gating-dropout:0.5", "1", "gaussian:0");
  dropout.fidelity = routing::Fidelity::tokens;
  const TrainingStep skipping = with(few, dropout);
  CHECK(skipping.step_us == Approx(skipping.balanced_step_us).epsilon(1e-9));
  // Without a capacity, too, and under the groups that a router keeps.
  dropout.router.drops = false;
  const TrainingStep dropless = with(few, dropout);
  CHECK(dropless.step_us == Approx(dropless.balanced_step_us).epsilon(1e-9));
  DrawnRouting grouped = drawn("group-limited:8:4", "1", "gaussian:0");
  grouped.router.drops = false;
  const TrainingStep limited = with(few, grouped);
  CHECK(limited.step_us == Approx(limited.balanced_step_us).epsilon(1e-9));
}
