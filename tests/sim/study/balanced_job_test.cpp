#include "sim/study/search/balanced_job.hpp"

#include <algorithm>
#include <vector>

#include "sim/routing/routers/router_name.hpp"
#include "sim/training/step/step_bound.hpp"
#include "sim/training/step/training_step.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using training::TrainingJob;

TEST_CASE("the first bound of a search holds where recorded ranks keep all their rows") {
  TrainingJob job;
  job.profile = std::make_shared<const profile::Profile>(profile::Profile::load("h100-sxm"));
  job.cluster = std::make_shared<const cluster::Cluster>(cluster::Cluster::load("hgx-h100"));
  job.model = std::make_shared<const model::Model>(model::Model::load("qwen3-30b-a3b"));
  job.layout.sizes.gpus = job.layout.sizes.expert = 8;
  job.layout.sequence_length = 4096;
  job.layout.global_batch = 8;
  job.host = {0, 0, 0};
  // Rank r has all 4,096 x 8 routes for its own 16 experts.
  routing::TraceShape shape;
  shape.ranks = 8;
  shape.tokens = 4096;
  shape.experts = 128;
  shape.top_k = 8;
  std::vector<std::int64_t> counts(std::size_t{8} * 128);
  for (std::ptrdiff_t rank = 0; rank < 8; ++rank) {
    std::fill_n(counts.begin() + rank * (128 + 16), 16, 2048);
  }
  training::DrawnRouting drawn;
  drawn.router = routing::parse_router("dropless", 0, 8);
  drawn.router.drops = false;
  drawn.scores.kind = routing::ScoreSource::Kind::trace;
  drawn.scores.trace = routing::Trace::of_counts("test", shape, counts);
  job.routing = drawn;
  const study::BalancedJob balanced(job);
  const training::LayerPrices prices(balanced.job);
  const std::vector<training::Passes> least = {
      training::least_moe_layer(prices, balanced.least_load({}))};
  CHECK(training::step_bound_us(job, prices, least) <= training::training_step(job).step_us);
}
