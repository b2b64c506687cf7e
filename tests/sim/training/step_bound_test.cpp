#include "sim/training/step/step_bound.hpp"

#include <optional>

#include "sim/routing/routers/router_name.hpp"
#include "sim/training/step/training_step.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::training;
using parallel::ScheduleKind;

namespace {

// DeepSeek-V2-Lite, which has a dense layer and latent attention, on nodes of 8 H100.
TrainingJob job(int gpus, int tensor, int pipeline, int expert) {
  TrainingJob made;
  made.profile = std::make_shared<const profile::Profile>(profile::Profile::load("h100-sxm"));
  made.cluster = std::make_shared<const cluster::Cluster>(cluster::Cluster::load("hgx-h100"));
  made.model = std::make_shared<const model::Model>(model::Model::load("deepseek-v2-lite"));
  made.layout.sizes.gpus = gpus;
  made.layout.sizes.tensor = tensor;
  made.layout.sizes.pipeline = pipeline;
  made.layout.sizes.expert = expert;
  made.layout.sequence_length = 4096;
  made.layout.global_batch = 8 * gpus;
  return made;
}

void set_chunks(TrainingJob& made, int virtual_stages) {
  made.layout.sizes.virtual_pipeline = virtual_stages;
  const int chunks = made.layout.shape().stages();
  made.layout.stages = parallel::nearly_even_pipeline_layout(made.model->layers, chunks);
}

struct Shares {
  double step = 0;
  double memory = 0;
};

// Bound over simulated; checks that neither is above 1.
Shares shares_of(const TrainingJob& made) {
  REQUIRE(!parallel::layout_refusal(*made.model, made.layout));
  const TrainingStep step = training_step(made);
  const Shares shares{step_bound_us(made, LayerPrices(made)) / step.step_us,
                      static_cast<double>(memory_bound(made).count) /
                          static_cast<double>(step.peak_memory().count)};
  CHECK(shares.step <= 1);
  CHECK(shares.memory <= 1);
  return shares;
}

}  // namespace

TEST_CASE("no step is below its bound, whatever its layout") {
  for (const int tensor : {1, 2}) {
    for (const int expert : {1, 8}) {
      for (const int pipeline : {1, 2, 4}) {
        for (const int virtual_stages : {1, 2, 3}) {
          if (pipeline == 1 && virtual_stages > 1) continue;
          for (const char* recompute : {"none", "moe_act", "full", "full:block:2"}) {
            for (const int zero : {0, 1, 2, 3}) {
              TrainingJob made = job(32, tensor, pipeline, expert);
              made.recompute = model::parse_recompute(recompute, "test");
              made.states.zero = zero;
              set_chunks(made, virtual_stages);
              const Shares shares = shares_of(made);
              CHECK(shares.step > 0.25);
              CHECK(shares.memory > 0.5);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("nor where blocks recompute dense and MoE layers alike") {
  for (const char* blocks : {"full:block:1", "full:block:2", "full:block:3"}) {
    for (const int virtual_stages : {1, 2}) {
      TrainingJob made = job(32, 1, 2, 8);
      made.model =
          std::make_shared<const model::Model>(model::Model::load("gpt-l16-h2560-moe16-alternate"));
      made.recompute = model::parse_recompute(blocks, "test");
      set_chunks(made, virtual_stages);
      CHECK(shares_of(made).memory > 0.5);
    }
  }
}

TEST_CASE("nor in other schedules, with overlapped exchanges or with capacity") {
  for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::zb_h1, ScheduleKind::zb_h2,
                                  ScheduleKind::dualpipe, ScheduleKind::dualpipe_v}) {
    TrainingJob made = job(32, 1, 4, 8);
    made.layout.schedule = kind;
    set_chunks(made, 1);
    CHECK(shares_of(made).step > 0.4);
  }
  TrainingJob hidden = job(32, 1, 2, 8);
  hidden.layout.expert_overlap = true;
  set_chunks(hidden, 3);
  CHECK(shares_of(hidden).step > 0.4);
  TrainingJob predicting = job(32, 1, 4, 8);
  model::Model deeper = *predicting.model;
  deeper.mtp_depths = 1;
  predicting.model = std::make_shared<const model::Model>(deeper);
  for (const char* layout : {"Et*9|t*9|t*5|t*4mL", "Et*9|t*9|t*9m|L"}) {
    predicting.layout.stages = parallel::parse_pipeline_layout(layout);
    CHECK(shares_of(predicting).step > 0.4);
  }
  // Exchanges of the depth's layer run beside others too.
  TrainingJob both_ways = predicting;
  both_ways.layout.schedule = ScheduleKind::dualpipe;
  both_ways.layout.stages = parallel::parse_pipeline_layout("Et*9|t*9|t*5|t*4mL");
  CHECK(shares_of(both_ways).step > 0.4);
  predicting.layout.sizes.virtual_pipeline = 2;
  predicting.layout.expert_overlap = true;
  predicting.layout.stages = parallel::parse_pipeline_layout("Et*4|t*4|t*4|t*4|t*4|t*4|t*3m|L");
  CHECK(shares_of(predicting).step > 0.4);
  for (const double factor : {0.5, 1.0, 2.0}) {
    TrainingJob padded = job(32, 1, 2, 8);
    padded.capacity_factor = factor;
    set_chunks(padded, 1);
    shares_of(padded);
  }
}

// 48 equal layers, no head that matters: 1f1b and its interleaved form take (m + PP - 1) and
// (m + (PP - 1) / v) times a rank's passes, which the bound says too.
TEST_CASE("the bound of equal stages is nearly exact") {
  for (const int virtual_stages : {1, 2, 4}) {
    TrainingJob made = job(4, 1, 4, 1);
    model::Model equal = model::Model::load("qwen3-30b-a3b");
    equal.vocabulary = 128;
    made.model = std::make_shared<const model::Model>(equal);
    made.layout.sizes.virtual_pipeline = virtual_stages;
    made.layout.global_batch = 32;
    made.host = {0, 0, 0};
    const Shares shares = shares_of(made);
    CHECK(shares.step > 0.995);
    CHECK(shares.memory > 0.995);
  }
}

TEST_CASE("no step with drawn routing is below the bounds of its loads") {
  for (const char* name : {"topk", "topk+fr", "topk+ir", "dropless"}) {
    for (const int pipeline : {1, 4}) {
      TrainingJob made = job(32, 1, pipeline, 8);
      DrawnRouting drawn;
      drawn.router = routing::parse_router(name, 6, 6);
      drawn.router.capacity_convention = routing::CapacityConvention::library;
      drawn.router.capacity_factor = Decimal::parse("1", "test");
      drawn.router.padding = routing::Padding::none;
      made.routing = drawn;
      set_chunks(made, pipeline > 1 ? 2 : 1);
      const auto loads = std::make_shared<const DrawnLoads>(made);
      const TrainingStep step = training_step(made, loads);
      const LayerPrices prices(made);
      const double bound = step_bound_us(made, prices, drawn_moe_layers(prices, *loads, true));
      CHECK(bound <= step.step_us);
      CHECK(bound > 0.9 * step.step_us);
      const double memory = static_cast<double>(memory_bound(made, loads.get()).count);
      CHECK(memory <= static_cast<double>(step.peak_memory().count));
      CHECK(memory > 0.8 * static_cast<double>(step.peak_memory().count));
      // As of other loads, which are no more than its own.
      const double least = step_bound_us(made, prices, drawn_moe_layers(prices, *loads, false));
      CHECK(least < bound);
      CHECK(least > 0.9 * bound);
    }
  }
}

TEST_CASE("nor where routing is drawn per micro-batch, or experts overlap their exchanges") {
  for (const bool overlaps : {false, true}) {
    TrainingJob made = job(16, 1, 2, 8);
    made.layout.global_batch = 64;
    made.layout.expert_overlap = overlaps;
    DrawnRouting drawn;
    drawn.router = routing::parse_router("dropless", 6, 6);
    drawn.draws = overlaps ? RoutingDraws::per_layer : RoutingDraws::per_micro_batch;
    made.routing = drawn;
    set_chunks(made, 3);
    const auto loads = std::make_shared<const DrawnLoads>(made);
    const TrainingStep step = training_step(made, loads);
    const LayerPrices prices(made);
    const double bound = step_bound_us(made, prices, drawn_moe_layers(prices, *loads, true));
    CHECK(bound <= step.step_us);
    CHECK(bound > 0.4 * step.step_us);
    CHECK(memory_bound(made, loads.get()) <= step.peak_memory());
  }
}
