#include <string>
#include <utility>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "sim/training/job/stage_division.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/drawn_job.hpp"

using namespace moesim;
using namespace moesim::training;

TEST_CASE("ranks of a stage that wait for each other make a set") {
  parallel::ParallelLayout layout;
  layout.gpus = 2048;
  layout.pipeline = 8;
  layout.expert = 64;
  StageDivision division = stage_division(layout);
  CHECK(division.ranks == 64);
  CHECK(division.sets == 4);  // as EDP
  CHECK(division.blocks_per_set == 1);
  // Folded: eight tensor ranks lie across two groups of four experts' ranks.
  layout = {64, 8, 1, 2, 1, 4, 1};
  division = stage_division(layout);
  CHECK(division.ranks == 8);
  CHECK(division.sets == 4);
  CHECK(division.blocks_per_set == 2);
}

TEST_CASE("memory counts the rows that one rank keeps of all its layers") {
  TrainingJob job = job_of("qwen3-30b-a3b", 64, 1, 8, 64);
  job.routing = drawn("dropless", nullptr, "zipf:1", per_micro_batch);
  const DrawnLoads loads(job);
  std::vector<int> layers;
  double busiest = 0;
  int above = 0;
  for (int layer = 0; layer < 48; ++layer) {
    layers.push_back(layer);
    const double held = loads.held_load(std::vector<int>{layer});
    double mean = 0;
    for (int micro = 0; micro < 64; ++micro) {
      for (int set = 0; set < loads.sets(); ++set) {
        const double computed = loads.at(layer, set, micro).computed;
        mean += computed / (64 * loads.sets());
        above += computed > held ? 1 : 0;
      }
    }
    CHECK(held == Approx(mean).epsilon(0.1));
    busiest += mean / 48;
  }
  // 1 % of the draws lie above, a little more where two ranks are nearly as full.
  CHECK(above < 0.025 * 48 * 64 * loads.sets());
  CHECK(above > 0);
  // Another rank is the fullest in each layer.
  const double held = loads.held_load(layers);
  CHECK(held > 1);
  CHECK(held < 1 + 0.6 * (busiest - 1));
  CHECK(loads.held_load({}) == 1);
  // Each stage of a pipeline has its own layers, and so its own fullest rank.
  job.routing->draws = RoutingDraws::per_layer;
  const Bytes drawn_memory = training_step(job).peak_memory();
  TrainingJob same = job;
  same.routing.reset();
  same.expert_load = 1;
  CHECK(drawn_memory > training_step(same).peak_memory());
  same.expert_load = busiest;
  CHECK(drawn_memory < training_step(same).peak_memory());
}

TEST_CASE("a capacity that nothing reaches is none") {
  const TrainingJob job = job_of("qwen3-30b-a3b", 64, 2, 8, 8);
  DrawnRouting wide = drawn("topk", "64", "gaussian:0.1", per_micro_batch);
  wide.router.padding = routing::Padding::none;
  const TrainingStep step = with(job, wide);
  CHECK(step.routing->loss.failed == 0);
  CHECK(step.routing->loss.residual_loss == 0);
  wide.router.capacity_factor = Decimal::parse("128", "test");
  CHECK(with(job, wide).step_us == step.step_us);
  // All sources of a group drawn as one have the same law, other numbers.
  const TrainingStep none = with(job, drawn("dropless", nullptr, "gaussian:0.1", per_micro_batch));
  CHECK(none.routing->mean_load == Approx(step.routing->mean_load).epsilon(0.002));
  CHECK(none.step_us == Approx(step.step_us).epsilon(0.002));
}

TEST_CASE("the loss of a step is that of its router at the same tokens per rank") {
  const TrainingJob job = job_of("qwen3-30b-a3b", 64, 2, 8, 16);
  std::vector<routing::RoutingJob> alone;
  for (const char* router : {"topk", "topk+fr+ir"}) {
    const DrawnRouting routing = drawn(router, "1", "gaussian:0.1", per_micro_batch);
    alone.emplace_back();
    alone.back().router = routing.router;
    alone.back().scores = routing.scores;
    alone.back().experts = 128;
    alone.back().gpus = alone.back().expert_parallel = 8;
    alone.back().tokens_per_gpu = 4096;
    alone.back().layers = 48;
    alone.back().seed = routing.seed;
  }
  // The same popularity of experts, other tokens: 1.6 million of them.
  const std::vector<routing::ReplicaRouting> tokens = routing::simulate_routing(alone, 0);
  for (std::size_t at = 0; at < alone.size(); ++at) {
    DrawnRouting routing = drawn("topk", "1", "gaussian:0.1", per_micro_batch);
    routing.router = alone[at].router;
    const routing::TokenLoss loss = with(job, routing).routing->loss;
    CHECK(loss.failed == Approx(tokens[at].loss.failed).margin(0.0005));
    CHECK(loss.residual_loss == Approx(tokens[at].loss.residual_loss).margin(0.002));
  }
}

TEST_CASE("capacity trades time for tokens, per source and per group") {
  const TrainingJob job = job_of("qwen3-30b-a3b", 64, 2, 8, 8);
  for (const routing::CapacityScope scope :
       {routing::CapacityScope::source, routing::CapacityScope::group}) {
    double time_us = 0;
    double loss = 1;
    for (const char* factor : {"0.75", "1", "1.25", "1.5"}) {
      DrawnRouting routing = drawn("topk", factor, "gaussian:0.1", per_micro_batch);
      routing.router.padding = routing::Padding::none;
      routing.router.capacity_scope = scope;
      const TrainingStep step = with(job, routing);
      CHECK(step.step_us > time_us);
      CHECK(step.routing->loss.residual_loss < loss);
      CHECK(step.imbalance < std::stod(factor) + 0.001);
      time_us = step.step_us;
      loss = step.routing->loss.residual_loss;
    }
  }
}

TEST_CASE("a group drops less than its sources by themselves, whatever draws them") {
  TrainingJob job = job_of("qwen3-30b-a3b", 64, 2, 8, 4);
  DrawnRouting routing = drawn("topk", "1", "gaussian:0.1", per_micro_batch);
  routing.router.padding = routing::Padding::none;
  const double by_source = with(job, routing).routing->loss.failed;
  routing.router.capacity_scope = routing::CapacityScope::group;
  const TrainingStep sums = with(job, routing);
  CHECK(sums.routing->loss.failed < by_source);
  // With sources apart: padded blocks need their counts.
  routing.router.padding = routing::Padding::capacity;
  const TrainingStep apart = with(job, routing);
  CHECK(apart.routing->loss.failed == Approx(sums.routing->loss.failed).margin(0.0005));
  CHECK(apart.imbalance > 1);  // blocks as large as the largest of the group
}

TEST_CASE("rectification computes the rows that were dropped") {
  const TrainingJob job = job_of("qwen3-30b-a3b", 64, 2, 8, 4);
  const TrainingStep plain = with(job, drawn("topk", "0.75", "gaussian:0.1"));
  const TrainingStep rectified = with(job, drawn("topk+ir", "0.75", "gaussian:0.1"));
  CHECK(rectified.routing->loss.residual_loss < plain.routing->loss.residual_loss);
  CHECK(rectified.imbalance > plain.imbalance);
  CHECK(rectified.step_us > plain.step_us);
}

TEST_CASE("micro-batches that differ make a step longer than their mean would") {
  TrainingJob job = job_of("qwen3-30b-a3b", 64, 4, 8, 8);
  const TrainingStep one = with(job, drawn("dropless", nullptr, "gaussian:0.1"));
  const TrainingStep every = with(job, drawn("dropless", nullptr, "gaussian:0.1", per_micro_batch));
  CHECK(every.routing->mean_load == Approx(one.routing->mean_load).epsilon(0.01));
  CHECK(every.step_us == Approx(one.step_us).epsilon(0.02));
  CHECK(one.routing->draws == 48);
  CHECK(every.routing->draws == 48 * 8 * 2);  // layers, micro-batches, EDP
  // Twice the same.
  CHECK(with(job, drawn("dropless", nullptr, "gaussian:0.1", per_micro_batch)).step_us ==
        every.step_us);
}

TEST_CASE("overlapped exchanges and DualPipe take each micro-batch's own time") {
  for (const bool dual : {false, true}) {
    TrainingJob job = job_of("qwen3-30b-a3b", 64, 4, 8, 16);
    if (dual) {
      job.layout.schedule = parallel::ScheduleKind::dualpipe;
    } else {
      job.layout.sizes.virtual_pipeline = 2;
      job.layout.expert_overlap = true;
    }
    const TrainingStep step = with(job, drawn("dropless", nullptr, "gaussian:0", per_micro_batch));
    CHECK(step.step_us == Approx(step.balanced_step_us).epsilon(0.005));
    double parts = 0;
    for (const double each : step.parts) parts += each;
    CHECK(parts == Approx(step.step_us));
  }
}

TEST_CASE("rows of an expert's slices come from all their groups") {
  TrainingJob job = job_of("qwen3-30b-a3b", 32, 2, 4, 4);
  job.layout.sizes.tensor = 2;
  job.layout.sizes.expert_tensor = 2;
  job.layout.global_batch = 4 * job.layout.sizes.data();
  const TrainingStep sums = with(job, drawn("dropless", nullptr, "gaussian:0.1", per_micro_batch));
  DrawnRouting wide = drawn("topk", "64", "gaussian:0.1", per_micro_batch);
  wide.router.padding = routing::Padding::none;
  CHECK(with(job, wide).imbalance == Approx(sums.imbalance).epsilon(0.003));
}

TEST_CASE("routers that training does not price are refused by name") {
  const TrainingJob job = job_of("qwen3-30b-a3b", 64, 2, 8, 8);
  for (const char* router : {"soft", "expert-choice", "base", "scomoe:0.5:0.2", "dense"}) {
    DrawnRouting routing = drawn("top1", "1", "gaussian:0.1");
    routing.router = routing::parse_router(router, 0, 8);
    CHECK_THROWS_WITH(with(job, routing), ContainsSubstring("--router: "));
    CHECK_THROWS_AS(with(job, routing), UsageError);
  }
  CHECK_THROWS_WITH(with(job, drawn("dropless", nullptr, "ragged-source:2")),
                    ContainsSubstring("the same tokens"));
}

TEST_CASE("counts give the busiest rank that all tokens give") {
  using Case = std::pair<const char*, const char*>;
  for (const auto& [router, scores] :
       {Case{"group-limited:8:4", "gaussian:0"}, Case{"group-limited:8:4", "gaussian:0.2"},
        Case{"bias-balanced:0.001:40+groups:8:4", "gaussian:0.1"}}) {
    TrainingJob job = job_of("qwen3-30b-a3b", 16, 1, 16, 1);
    job.routing = drawn("dropless", nullptr, scores);
    job.routing->router = routing::parse_router(router, 8, 8);
    job.routing->fidelity = routing::Fidelity::tokens;
    job.layout.sequence_length = 1024;
    const RoutingFigures tokens = DrawnLoads(job).figures();
    CHECK(!tokens.sampled);
    job.routing->fidelity = routing::Fidelity::automatic;
    job.routing->draws = per_micro_batch;
    job.layout.global_batch = 16 * 8;
    const RoutingFigures sample = DrawnLoads(job).figures();
    CHECK(!sample.sampled);
    CHECK(sample.draws == 8 * 48);
    // 48 layers each; the excess of the busiest rank, to a tenth.
    CHECK(sample.mean_load - 1 == Approx(tokens.mean_load - 1).epsilon(0.12));
    CHECK(sample.loss.residual_loss == Approx(tokens.loss.residual_loss).epsilon(0.05));
  }
}

TEST_CASE("a sample of tokens that are chosen for together loses what all tokens lose", "[slow]") {
  TrainingJob job = job_of("qwen3-30b-a3b", 8, 1, 8, 1);
  job.routing = drawn("dropless", nullptr, "gaussian:0.5");
  job.routing->router = routing::parse_router("sinkhorn", 8, 8);
  job.routing->fidelity = routing::Fidelity::tokens;
  job.layout.sequence_length = 4096;
  const RoutingFigures tokens = DrawnLoads(job).figures();
  CHECK(!tokens.sampled);
  job.routing->fidelity = routing::Fidelity::automatic;
  const RoutingFigures sample = DrawnLoads(job).figures();
  CHECK(sample.sampled);
  // Batches of 64 tokens, balanced one by one, lost a tenth more.
  CHECK(sample.loss.residual_loss == Approx(tokens.loss.residual_loss).epsilon(0.03));
}

TEST_CASE("drawing says after each layer how far it is") {
  TrainingJob job = job_of("qwen3-30b-a3b", 64, 1, 8, 64);
  for (const char* router : {"dropless", "sinkhorn"}) {  // by counts, by a sample
    job.routing = drawn(router, nullptr, "gaussian:0.1");
    job.routing->fidelity = routing::Fidelity::automatic;
    std::vector<std::pair<std::size_t, std::size_t>> heard;
    const DrawnLoads loads(job, true, nullptr, [&](std::size_t layers, std::size_t all) {
      heard.emplace_back(layers, all);
    });
    CAPTURE(router);
    REQUIRE(heard.size() == 48);
    CHECK(heard.front() == std::pair<std::size_t, std::size_t>(1, 48));
    CHECK(heard.back() == std::pair<std::size_t, std::size_t>(48, 48));
  }
}
