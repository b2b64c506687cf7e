#include "tests/support/catch.hpp"
#include "tests/support/drawn_job.hpp"

using namespace moesim;
using namespace moesim::training;

TEST_CASE("blocks as long as the longest are computed, exchanged and read by the host") {
  const TrainingJob job = job_of("qwen3-30b-a3b", 64, 2, 8, 8);
  const auto step = [&](const char* routing, routing::Padding padding) {
    DrawnRouting drawn_routing = drawn("dropless", nullptr, routing, per_micro_batch);
    drawn_routing.router.padding = padding;
    return with(job, drawn_routing);
  };
  for (const char* routing : {"gaussian:0", "gaussian:0.2"}) {
    CAPTURE(routing);
    const TrainingStep kept = step(routing, routing::Padding::none);
    const TrainingStep padded = step(routing, routing::Padding::busiest);
    // All ranks compute as many rows as one whose experts all are the fullest of one source would.
    CHECK(padded.routing->mean_load > kept.routing->mean_expert_load);
    CHECK(padded.routing->loss.padded == Approx(1 - 1 / padded.routing->mean_load).epsilon(0.01));
    CHECK(padded.routing->loss.failed == 0);
    const auto experts = static_cast<std::size_t>(TrainingPart::experts);
    CHECK(padded.parts[experts] > 1.02 * kept.parts[experts]);
    CHECK(padded.step_us > kept.step_us);
  }
  // The longest of 8 x 128 blocks of 256 rows.
  const TrainingStep random = step("gaussian:0", routing::Padding::busiest);
  CHECK(random.step_us == Approx(random.balanced_step_us).epsilon(0.01));
}

TEST_CASE("blocks of a router without counts are as long as the longest too") {
  const TrainingJob job = one_layer_of(job_of("qwen3-30b-a3b", 8, 1, 8, 1));
  DrawnRouting routing = drawn("sinkhorn", nullptr, "gaussian:0");
  routing.fidelity = routing::Fidelity::automatic;
  CHECK(with(job, routing).routing->sampled);
  routing.router.padding = routing::Padding::busiest;
  const RoutingFigures figures = with(job, routing).routing.value();
  CHECK(figures.loss.padded == Approx(1 - 1 / figures.mean_load));
  CHECK(figures.mean_load > 1.1);
}

TEST_CASE("padded slots are those that are computed and hold no row") {
  const TrainingJob job = one_layer_of(job_of("qwen3-30b-a3b", 8, 1, 8, 1));
  for (const routing::CapacityScope scope :
       {routing::CapacityScope::source, routing::CapacityScope::group}) {
    for (const char* router : {"topk", "topk+fr"}) {
      for (const char* factor : {"0.75", "1", "4"}) {
        CAPTURE(scope, router, factor);
        DrawnRouting routing = drawn(router, factor, "gaussian:0.2");
        routing.router.capacity_scope = scope;
        const RoutingFigures figures = with(job, routing).routing.value();
        // A token has 8 choices.
        const double filled = 1 - figures.loss.fill_failed.value_or(1);
        const double kept = 1 - figures.loss.failed + filled / 8;
        CHECK(figures.loss.padded == Approx(1 - kept / figures.mean_load).margin(1e-9));
      }
    }
  }
}
