#include "sim/training/step/layer_time.hpp"

#include "sim/routing/routers/router_name.hpp"
#include "sim/training/step/training_step.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::training;

namespace {

// 48 MoE layers on one pipeline rank, two micro-batches.
TrainingJob job(const char* scores, const char* dispatcher) {
  TrainingJob made;
  made.profile = std::make_shared<const profile::Profile>(profile::Profile::load("h100-sxm"));
  made.cluster = std::make_shared<const cluster::Cluster>(cluster::Cluster::load("hgx-h100"));
  made.model = std::make_shared<const model::Model>(model::Model::load("qwen3-30b-a3b"));
  made.layout.sizes.gpus = 8;
  made.layout.sizes.expert = 8;
  made.layout.sequence_length = 1024;
  made.layout.global_batch = 16;
  made.routing.emplace();
  made.routing->router = routing::parse_router("dropless", 8, 8);
  made.routing->scores = routing::parse_score_source(scores, "test");
  if (dispatcher != nullptr) {
    made.dispatcher =
        std::make_shared<const profile::Dispatcher>(profile::Dispatcher::load(dispatcher));
  }
  return made;
}

}  // namespace

TEST_CASE("a drawn layer takes what one of the layers of its step takes on average") {
  for (const char* const dispatcher : {static_cast<const char*>(nullptr), "deepep"}) {
    const TrainingJob made = job("hot-rank:4", dispatcher);
    const TrainingStep step = training_step(made);
    const PartTimes forward = layer_time(made, LayerExtent::whole, false);
    const PartTimes backward = layer_time(made, LayerExtent::whole, true);
    for (const TrainingPart part :
         {TrainingPart::attention, TrainingPart::experts, TrainingPart::router,
          TrainingPart::dispatch, TrainingPart::combine}) {
      CAPTURE(name_in(part_names, part));
      const double layer_us = step.parts[at(part)] / (48 * 2);
      // Passes of the step are rounded to picoseconds.
      CHECK(forward[at(part)] + backward[at(part)] == Approx(layer_us).epsilon(1e-7));
    }
  }
}
