#include <cmath>
#include <string_view>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "sim/training/job/stage_division.hpp"
#include "sim/training/step/training_step.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::training;

namespace {

TrainingJob job_of(const char* model, int gpus, int pipeline, int expert, int micro_batches) {
  TrainingJob made;
  made.profile = std::make_shared<const profile::Profile>(profile::Profile::load("h100-sxm"));
  made.cluster = std::make_shared<const cluster::Cluster>(cluster::Cluster::load("hgx-h100"));
  made.model = std::make_shared<const model::Model>(model::Model::load(model));
  made.layout.sizes.gpus = gpus;
  made.layout.sizes.pipeline = pipeline;
  made.layout.sizes.expert = expert;
  made.layout.sequence_length = 4096;
  made.layout.global_batch = std::int64_t{micro_batches} * made.layout.sizes.data();
  made.host = {0, 0, 0};
  return made;
}

DrawnRouting drawn(const char* router, const char* capacity_factor, const char* scores,
                   RoutingDraws draws = RoutingDraws::per_layer) {
  DrawnRouting made;
  made.router = routing::parse_router(router, 0, 8);
  made.router.capacity_convention = routing::CapacityConvention::library;
  if (capacity_factor != nullptr) {
    made.router.capacity_factor = Decimal::parse(capacity_factor, "test");
  } else {
    made.router.drops = false;
  }
  made.scores = routing::parse_score_source(scores, "test");
  made.fidelity = routing::Fidelity::counts;
  made.draws = draws;
  return made;
}

TrainingStep with(TrainingJob job, const DrawnRouting& routing) {
  job.routing = routing;
  return training_step(job);
}

constexpr RoutingDraws all = RoutingDraws::per_micro_batch;

}  // namespace

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
    job.routing = drawn("dropless", nullptr, "gaussian:0", all);
    const RoutingFigures figures = DrawnLoads(job).figures();
    CHECK(figures.mean_load == Approx(known.rank).epsilon(0.001));
    CHECK(figures.mean_expert_load == Approx(known.expert_load).epsilon(0.003));
    CHECK(figures.mean_load ==
          Approx(random_imbalance(job.model->moe->experts, 8, known.expert, 4096)).epsilon(0.002));
    CHECK(figures.draws == 4 * job.model->moe_layers());
  }
}

TEST_CASE("balanced blocks cost what forced balance costs, to the bit") {
  for (const RoutingDraws draws : {RoutingDraws::per_layer, all}) {
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

namespace {

// Microseconds of dispatch and combine.
double exchange_us(const TrainingStep& step) {
  return step.parts[static_cast<std::size_t>(Part::dispatch)] +
         step.parts[static_cast<std::size_t>(Part::combine)];
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

TEST_CASE("blocks as long as the longest are computed, exchanged and read by the host") {
  const TrainingJob job = job_of("qwen3-30b-a3b", 64, 2, 8, 8);
  const auto step = [&](const char* routing, routing::Padding padding) {
    DrawnRouting drawn_routing = drawn("dropless", nullptr, routing, all);
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
    const auto experts = static_cast<std::size_t>(Part::experts);
    CHECK(padded.parts[experts] > 1.02 * kept.parts[experts]);
    CHECK(padded.step_us > kept.step_us);
  }
  // The longest of 8 x 128 blocks of 256 rows.
  const TrainingStep random = step("gaussian:0", routing::Padding::busiest);
  CHECK(random.step_us == Approx(random.balanced_step_us).epsilon(0.01));
}

TEST_CASE("blocks of a router without counts are as long as the longest too") {
  TrainingJob job = job_of("qwen3-30b-a3b", 8, 1, 8, 1);
  model::Model small = *job.model;
  small.layers = 1;
  job.model = std::make_shared<const model::Model>(small);
  DrawnRouting routing = drawn("sinkhorn", nullptr, "gaussian:0");
  routing.fidelity = routing::Fidelity::automatic;
  CHECK(with(job, routing).routing->sampled);
  routing.router.padding = routing::Padding::busiest;
  const RoutingFigures figures = with(job, routing).routing.value();
  CHECK(figures.loss.padded == Approx(1 - 1 / figures.mean_load));
  CHECK(figures.mean_load > 1.1);
}

TEST_CASE("random logits cost what forced balance costs, within the spread of draws") {
  const TrainingStep step =
      with(job_of("qwen3-30b-a3b", 64, 2, 8, 8), drawn("dropless", nullptr, "gaussian:0", all));
  CHECK(step.step_us == Approx(step.balanced_step_us).epsilon(0.002));
  const TrainingStep skewed =
      with(job_of("qwen3-30b-a3b", 64, 2, 8, 8), drawn("dropless", nullptr, "gaussian:0.2", all));
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

TEST_CASE("padded slots are those that are computed and hold no row") {
  TrainingJob job = job_of("qwen3-30b-a3b", 8, 1, 8, 1);
  model::Model small = *job.model;
  small.layers = 1;
  job.model = std::make_shared<const model::Model>(small);
  for (const routing::CapacityScope scope :
       {routing::CapacityScope::source, routing::CapacityScope::group}) {
    for (const char* router : {"topk", "topk+fr"}) {
      for (const char* factor : {"0.75", "1", "4"}) {
        CAPTURE(scope, router, factor);
        DrawnRouting routing = drawn(router, factor, "gaussian:0.2");
        routing.router.capacity_scope = scope;
        const RoutingFigures figures = with(job, routing).routing.value();
        // Of 8 choices.
        const double filled = 1 - figures.loss.fill_failed.value_or(1);
        const double kept = 1 - figures.loss.failed + filled / 8;
        CHECK(figures.loss.padded == Approx(1 - kept / figures.mean_load).margin(1e-9));
      }
    }
  }
}

TEST_CASE("memory counts the rows that one rank keeps of all its layers") {
  TrainingJob job = job_of("qwen3-30b-a3b", 64, 1, 8, 64);
  job.routing = drawn("dropless", nullptr, "zipf:1", all);
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
  DrawnRouting wide = drawn("topk", "64", "gaussian:0.1", all);
  wide.router.padding = routing::Padding::none;
  const TrainingStep step = with(job, wide);
  CHECK(step.routing->loss.failed == 0);
  CHECK(step.routing->loss.residual_loss == 0);
  wide.router.capacity_factor = Decimal::parse("128", "test");
  CHECK(with(job, wide).step_us == step.step_us);
  // All sources of a group drawn as one have the same law, other numbers.
  const TrainingStep none = with(job, drawn("dropless", nullptr, "gaussian:0.1", all));
  CHECK(none.routing->mean_load == Approx(step.routing->mean_load).epsilon(0.002));
  CHECK(none.step_us == Approx(step.step_us).epsilon(0.002));
}

TEST_CASE("the loss of a step is that of its router at the same tokens per rank") {
  const TrainingJob job = job_of("qwen3-30b-a3b", 64, 2, 8, 16);
  std::vector<routing::RoutingJob> alone;
  for (const char* router : {"topk", "topk+fr+ir"}) {
    const DrawnRouting routing = drawn(router, "1", "gaussian:0.1", all);
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
    DrawnRouting routing = drawn("topk", "1", "gaussian:0.1", all);
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
      DrawnRouting routing = drawn("topk", factor, "gaussian:0.1", all);
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
  DrawnRouting routing = drawn("topk", "1", "gaussian:0.1", all);
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
  const TrainingStep every = with(job, drawn("dropless", nullptr, "gaussian:0.1", all));
  CHECK(every.routing->mean_load == Approx(one.routing->mean_load).epsilon(0.01));
  CHECK(every.step_us == Approx(one.step_us).epsilon(0.02));
  CHECK(one.routing->draws == 48);
  CHECK(every.routing->draws == 48 * 8 * 2);  // layers, micro-batches, EDP
  // Twice the same.
  CHECK(with(job, drawn("dropless", nullptr, "gaussian:0.1", all)).step_us == every.step_us);
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
    const TrainingStep step = with(job, drawn("dropless", nullptr, "gaussian:0", all));
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
  const TrainingStep sums = with(job, drawn("dropless", nullptr, "gaussian:0.1", all));
  DrawnRouting wide = drawn("topk", "64", "gaussian:0.1", all);
  wide.router.padding = routing::Padding::none;
  CHECK(with(job, wide).imbalance == Approx(sums.imbalance).epsilon(0.003));
}

TEST_CASE("a rank overflows as often as the law of its rows says") {
  // One micro-batch of one group, all experts alike: P(max > rows), of 16 x 58 layers drawn.
  for (const char* scores : {"gaussian:0", "gaussian:0.1"}) {
    TrainingJob job = job_of("deepseek-v3", 32, 1, 32, 16);
    job.routing = drawn("dropless", nullptr, scores, all);
    const RankRowsLaw law(job);
    const DrawnLoads loads(job);
    for (const double load : {1.008, 1.012, 1.02, 1.2, 1.3}) {
      double over = 0;
      for (int layer = 0; layer < 58; ++layer) {
        for (int micro = 0; micro < 16; ++micro) {
          over += loads.at(layer, 0, micro).computed > load ? 1 : 0;
        }
      }
      const double chance = law.overflow_chance_of_one(load * 8 * 4096);
      // 3.6 standard deviations of the count at most, and the rounding of loads to 1/1024.
      CHECK(over / (58 * 16) == Approx(chance).margin(0.06));
    }
  }
}

TEST_CASE("a step overflows if any of its ranks does") {
  TrainingJob job = job_of("deepseek-v3", 64, 1, 32, 16);
  job.routing = drawn("dropless", nullptr, "gaussian:0", all);
  const RankRowsLaw law(job);
  const double rows = 1.025 * 8 * 4096;
  const double one = law.overflow_chance_of_one(rows);
  // 58 layers alike, 16 micro-batches, 2 groups.
  CHECK(law.overflow_chance(rows) == Approx(1 - std::pow(1 - one, 58 * 16 * 2)).epsilon(1e-6));
  CHECK(law.overflow_chance(8 * 4096) == 1);
  CHECK(law.overflow_chance(8 * law.rows_for(0.01) / 8) <= 0.01);
  CHECK(law.overflow_chance(law.rows_for(0.01) - 2) > 0.01);
}

TEST_CASE("a capacity per rank saves host reads and pays for reruns") {
  TrainingJob job = job_of("qwen3-30b-a3b", 64, 2, 8, 8);
  job.host = {0, 20, 0};
  DrawnRouting routing = drawn("dropless", nullptr, "gaussian:0.1", all);
  const TrainingStep dropless = with(job, routing);
  routing.rank_capacity = 2;
  const TrainingStep wide = with(job, routing);
  CHECK(wide.rank_capacity->rows == 65536);  // 2 x 8 x 4096, a multiple of 256
  CHECK(wide.rank_capacity->overflow_chance < 1e-9);
  CHECK(wide.step_us < dropless.step_us);
  CHECK(wide.parts[static_cast<std::size_t>(Part::host)] == 0);
  CHECK(wide.rank_capacity->rerun_us == dropless.step_us);
  CHECK(wide.routing->loss.residual_loss == 0);
  routing.rank_capacity = 1.001;
  const TrainingStep narrow = with(job, routing);
  CHECK(narrow.rank_capacity->rows == 33024);  // 32,800 rounded up to 129 x 256
  CHECK(narrow.rank_capacity->overflow_chance == 1);
  CHECK(narrow.step_us == Approx(narrow.rank_capacity->static_step_us + dropless.step_us));
  // Every step runs again without a budget: its memory has to be there too.
  CHECK(narrow.peak_memory() == dropless.peak_memory());
  CHECK(narrow.peak_memory() < wide.peak_memory());
  routing = drawn("topk", "1", "gaussian:0.1");
  routing.rank_capacity = 1.5;
  CHECK_THROWS_WITH(with(job, routing), ContainsSubstring("leave --capacity-factor out"));
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
    job.routing->draws = all;
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
