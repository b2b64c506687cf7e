#include "tests/support/catch.hpp"
#include "tests/support/drawn_job.hpp"

using namespace moesim;
using namespace moesim::training;

namespace {

// Microseconds of dispatch and combine.
double exchange_us(const TrainingStep& step) {
  return step.parts[static_cast<std::size_t>(TrainingPart::dispatch)] +
         step.parts[static_cast<std::size_t>(TrainingPart::combine)];
}

TrainingJob with_dispatcher(TrainingJob job, const char* name) {
  job.dispatcher = std::make_shared<const profile::Dispatcher>(profile::Dispatcher::load(name));
  return job;
}

}  // namespace

TEST_CASE("a dispatcher sends a token once to a hot rank, NCCL all its rows") {
  const TrainingJob job = job_of("qwen3-30b-a3b", 8, 1, 8, 2);
  const auto ratio = [&](const TrainingJob& of) {
    return exchange_us(with(of, drawn("dropless", nullptr, "hot-rank:4"))) /
           exchange_us(with(of, drawn("dropless", nullptr, "balanced")));
  };
  const double rows = ratio(job);
  const double copies = ratio(with_dispatcher(job, "deepep"));
  CHECK(rows > 2.3);  // 4 of 11 rows of all ranks are the hot rank's: 2.9 times balance
  // A token meets 5.34 of 8 ranks; all tokens meet the hot one at most: 8 / 5.34 = 1.50 times as
  // many copies. `simulate` counts 1.32 times the time.
  CHECK(copies < 1.5);
  CHECK(copies > 1.2);
}

TEST_CASE("what is dropped saves less of a dispatcher's copies than of the rows") {
  const TrainingJob job = with_dispatcher(job_of("qwen3-30b-a3b", 8, 1, 8, 2), "deepep");
  DrawnRouting half = drawn("topk", "0.5", "balanced");
  half.router.padding = routing::Padding::none;
  // With 4 of 8 routes a token meets 8 (1 - C(112, 4) / C(128, 4)) = 3.33 of 8 ranks, not 5.34, if
  // its routes are taken evenly; `simulate` has 0.76 of the time.
  const double left =
      exchange_us(with(job, half)) / exchange_us(with(job, drawn("dropless", nullptr, "balanced")));
  CHECK(left > 3.33 / 5.34);
  CHECK(left < 0.85);
}

TEST_CASE("a row per expert waits for the fullest expert, not for the fullest rank") {
  const TrainingJob job = with_dispatcher(job_of("qwen3-30b-a3b", 8, 1, 8, 2), "low-latency");
  TrainingJob uneven = job;
  uneven.routing = drawn("dropless", nullptr, "gaussian:0.58");
  const DrawnLoads loads(uneven);
  CHECK(loads.at(0, 0, 0).dispatched.expert_rows > 1.5 * loads.at(0, 0, 0).exchanged);
  CHECK(loads.at(0, 0, 0).dispatched.sent_copies == loads.at(0, 0, 0).exchanged);
  const TrainingStep step = training_step(uneven);
  CHECK(exchange_us(step) > 1.5 * exchange_us(with(job, drawn("dropless", nullptr, "balanced"))));
}

TEST_CASE("a buffer that no rank fills takes no time from a dispatcher") {
  const TrainingJob job = with_dispatcher(job_of("qwen3-30b-a3b", 8, 1, 8, 2), "low-latency");
  DrawnRouting routing = drawn("dropless", nullptr, "gaussian:0.2");
  const TrainingStep plain = with(job, routing);
  routing.rank_capacity = 3;
  const TrainingStep buffered = with(job, routing);
  CHECK(buffered.routing->largest_load < 3);
  CHECK(exchange_us(buffered) == Approx(exchange_us(plain)).epsilon(1e-9));
}

TEST_CASE("copies of hot experts relieve the fullest expert, as far as they go") {
  TrainingJob job = with_dispatcher(job_of("qwen3-30b-a3b", 8, 1, 8, 2), "low-latency");
  job.routing = drawn("dropless", nullptr, "gaussian:0.5");
  const double without = DrawnLoads(job).at(0, 0, 0).dispatched.expert_rows;
  job.redundant_experts = 8;
  const double with_copies = DrawnLoads(job).at(0, 0, 0).dispatched.expert_rows;
  CHECK(without > 3);
  CHECK(with_copies < 0.8 * without);
  CHECK(with_copies > 1.3);  // 8 of 136 slots cannot even out what 128 experts have
}

TEST_CASE("rectification in the domain needs another rank of the group there") {
  TrainingJob job = job_of("qwen3-30b-a3b", 64, 1, 8, 1);
  job.layout.sizes.expert_tensor = 8;  // each rank of a group on a node of its own
  job.layout.global_batch = job.layout.sizes.data();
  const auto lost = [&](const char* router,
                        routing::IrDuplicates duplicates = routing::IrDuplicates::allow) {
    DrawnRouting routing = drawn(router, "1", "gaussian:0.58");
    routing.router.ir_duplicates = duplicates;
    return with(job, routing).routing->loss.residual_loss;
  };
  CHECK(lost("topk+ir@node") == Approx(lost("topk+ir")).epsilon(0.01));
  job.layout.sizes.expert_tensor = 1;
  job.layout.global_batch = job.layout.sizes.data();
  // All experts are in the domain: the best of them mostly has the token already.
  CHECK(lost("topk+ir@node") > 1.05 * lost("topk+ir"));
  // Without those that have it, the domain has better experts than a rank.
  const auto exclude = routing::IrDuplicates::exclude;
  CHECK(lost("topk+ir@node", exclude) < 0.95 * lost("topk+ir", exclude));
}

TEST_CASE("layers that skip the exchange take no time for it") {
  const auto time_us = [](const char* router) {
    DrawnRouting routing = drawn(router, nullptr, "gaussian:0");
    routing.fidelity = routing::Fidelity::automatic;
    return exchange_us(with(job_of("qwen3-30b-a3b", 16, 1, 16, 2), routing));
  };
  const double half = time_us("gating-dropout:0.5");
  CHECK(half < 0.7 * time_us("topk"));
  CHECK(time_us("gating-dropout:0.9") < 0.5 * half);
}

TEST_CASE("rows that are rectified on another GPU of the domain travel there") {
  const TrainingJob job = job_of("qwen3-30b-a3b", 16, 1, 16, 2);
  const auto step = [&](const char* router) {
    return with(job, drawn(router, "1", "gaussian:0.3"));
  };
  const double none = exchange_us(step("topk"));
  CHECK(exchange_us(step("topk+ir")) == Approx(none).epsilon(1e-9));
  CHECK(exchange_us(step("topk+ir@node")) > 1.02 * none);
}
