#include "sim/training/step/pipelines.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "sim/model/memory/training_exchanges.hpp"
#include "sim/training/job/rank_memory.hpp"
#include "sim/training/prices/layer_prices.hpp"
#include "sim/training/step/pair_spans.hpp"
#include "sim/training/step/training_step.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/training_job.hpp"

using namespace moesim;
using namespace moesim::training;

TEST_CASE("the head of a prediction depth is computed with the loss") {
  TrainingJob made = qwen_on_h100(32, 4, 8, 64);
  made.model = std::make_shared<const model::Model>(model::Model::load("deepseek-v3"));
  made.layout.stages = parallel::parse_pipeline_layout("Et*30|t*30|tm|L");
  Pipelines pipelines(made);
  const PipelineRun run = pipelines.slowest();
  const LayerPrices& prices = pipelines.prices();
  const auto head_us = [&](int stage) {
    return pipelines.passes(run, {0, stage}).forward[at(TrainingPart::head)];
  };
  CHECK(head_us(1) == 0);
  CHECK(head_us(2) == Approx(prices.prediction().forward[at(TrainingPart::head)]));
  CHECK(head_us(3) == Approx(2 * prices.head().forward[at(TrainingPart::head)]));
  // Both hidden vectors of a token travel to it.
  const double once = prices.exchanges().boundary_us(2, 3, 1);
  const double twice = prices.exchanges().boundary_us(2, 3, 2);
  CHECK(once < twice);
  CHECK(twice < 2 * once);  // the latency is paid once
  const auto gap = [&](int rank) {
    return run.run.ranks[at(rank + 1)].spans[0].start - run.run.ranks[at(rank)].spans[0].end;
  };
  CHECK(gap(1) == Picoseconds::from_us(once));
  CHECK(gap(2) == Picoseconds::from_us(twice));
  const std::vector<model::StageMemory> memory = training_step(made).memory;
  CHECK(memory[2].logits.count == 0);
  CHECK(memory[3].logits.count == (6LL + 4) * 129280 * 4096);
}

// 61 layers and one depth's in one chunk: the first forward pass, pairs, the last backward pass.
TEST_CASE("the layer of a prediction depth hides its exchanges in a pair as the others do") {
  TrainingJob made = qwen_on_h100(8, 1, 8, 24);
  made.model = std::make_shared<const model::Model>(model::Model::load("deepseek-v3"));
  made.layout.stages = parallel::parse_pipeline_layout("Et*61mL");
  made.layout.expert_overlap = true;
  const auto passes_us = [](const Passes& passes) {
    return std::pair(sum(passes.forward), sum(passes.input_gradient) + sum(passes.weight_gradient));
  };
  for (const double launch_us : {0.0, 1000.0}) {
    made.host.launch_us = launch_us;
    Pipelines pipelines(made);
    const PipelineRun run = pipelines.slowest();
    const LayerPrices& prices = pipelines.prices();
    // Layers 0 to 2 are dense; 58 others and the depth's have experts.
    std::vector<parallel::LayerPieces> pieces(3, pieces_of(prices.layer(false)));
    pieces.resize(62, pieces_of(prices.layer(true)));
    std::vector<parallel::LayerPieces> backward(pieces.rbegin(), pieces.rend());
    const Pipelines::Pair pair = pipelines.pair_of(run, {1, 0}, {0, 0});
    CHECK(pair.forward.size() == 62);
    CHECK(pair.backward.size() == 62);
    const Picoseconds launches =
        Picoseconds::from_us(3 * prices.host_us(false) + 59 * prices.host_us(true));
    CHECK(pair.launches.us() == Approx(launches.us()));
    double beside_us = 0;
    double forward_us = 3 * passes_us(prices.layer(false)).first;
    double backward_us = 3 * passes_us(prices.layer(false)).second;
    forward_us += 59 * passes_us(prices.layer(true)).first;
    backward_us += 59 * passes_us(prices.layer(true)).second;
    for (const Passes* end :
         {&prices.embedding(), &prices.prediction(), &prices.head(), &prices.head(false)}) {
      forward_us += passes_us(*end).first;
      backward_us += passes_us(*end).second;
      beside_us += passes_us(*end).first + passes_us(*end).second;
    }
    CHECK(pair.beside.us() == Approx(beside_us));
    // An H100 has 132 SMs, NCCL takes 32.
    const double layers_us =
        std::max(parallel::overlapped_time(pieces, backward, {.sms = 132, .exchange_sms = 32}),
                 launches)
            .us();
    std::set<int> layers;
    for (const PairSpan& span : pair_spans(pipelines, run, {1, 0}, {0, 0})) {
      if (span.layer >= 0) layers.insert(span.layer);
    }
    CHECK(layers.size() == 62);
    CHECK(*layers.rbegin() == 61);
    // 24 sequences over 8 ranks.
    CHECK(run.run.makespan.us() ==
          Approx(forward_us + 2 * (layers_us + beside_us) + backward_us).epsilon(1e-9));
  }
}

TEST_CASE("a rank with prediction depths has one embedding, its own or a copy") {
  TrainingJob made = qwen_on_h100(32, 4, 8, 64);
  made.model = std::make_shared<const model::Model>(model::Model::load("deepseek-v3"));
  const auto dense = [&](const char* layout, int rank) {
    made.layout.stages = parallel::parse_pipeline_layout(layout);
    return rank_parameters(made, chunk_contents(made), rank, made.experts()).dense;
  };
  const double matrix = 129280.0 * 7168;
  const double projection = 2.0 * 7168 * 7168 + 3 * 7168;
  const double layer = dense("Et*30|t*30|t|L", 2);
  CHECK(dense("Et*30|t*30|tm|L", 2) == 2 * layer + projection + matrix);
  // Folded: the first chunk and the last are on one rank.
  made.layout.schedule = parallel::ScheduleKind::dualpipe_v;
  const double first = dense("Et*8|(t*8|)*6t*5L", 0);
  CHECK(dense("Et*8|(t*8|)*6t*5mL", 0) - first == layer + projection);
}

TEST_CASE("prediction depths beside the loss compute their heads there") {
  TrainingJob made = qwen_on_h100(32, 4, 8, 64);
  model::Model predicting = *made.model;
  predicting.mtp_depths = 2;
  made.model = std::make_shared<const model::Model>(predicting);
  const auto head_us = [&](const char* layout) {
    made.layout.stages = parallel::parse_pipeline_layout(layout);
    Pipelines pipelines(made);
    const PipelineRun run = pipelines.slowest();
    return pipelines.passes(run, {0, 3}).forward[at(TrainingPart::head)];
  };
  const LayerPrices prices(made);
  const double head = prices.head().forward[at(TrainingPart::head)];
  const double prediction = prices.prediction().forward[at(TrainingPart::head)];
  CHECK(head_us("Et*16|t*16|t*8|t*8mmL") == Approx(3 * head + 2 * prediction));
  CHECK(head_us("Et*16|t*16|t*16m|mL") == Approx(3 * head + prediction));
  CHECK(head_us("Et*16|t*16|t*16mm|L") == Approx(3 * head));
}

TEST_CASE("shared weights of the ends are gathered once for all losses, with the depth's own") {
  TrainingJob made =
      qwen_on_h100(32, 4, 8, 64);  // 8 ranks share all but the experts, which have one
  made.model = std::make_shared<const model::Model>(model::Model::load("deepseek-v3"));
  made.layout.stages = parallel::parse_pipeline_layout("Et*16|t*15|t*15|t*15mL");
  made.states.zero = 3;
  made.overlaps_parameters = made.overlaps_gradients = false;
  Pipelines pipelines(made);
  const PipelineRun run = pipelines.slowest();
  const LayerPrices& prices = pipelines.prices();
  const auto of = [&](profile::Collective kind, double bytes) {
    return prices.exchanges().replicas_us(kind, parallel::GroupKind::data_context,
                                          Replicas::instance_of_copy, bytes);
  };
  const double vocabulary = 129280.0 * 7168;
  const double head = vocabulary + 7168;                             // with the final norm
  const double depth = vocabulary + 2.0 * 7168 * 7168 + 3.0 * 7168;  // reads the embedding
  const Passes& passes = pipelines.passes(run, {0, 3});
  const Passes& layer = prices.layer(true);  // 15 and the depth's
  const double gathered = of(profile::Collective::all_gather, 2 * head) +
                          of(profile::Collective::all_gather, 2 * depth);
  CHECK(passes.forward[at(TrainingPart::parameters)] ==
        Approx(16 * layer.forward[at(TrainingPart::parameters)] + gathered));
  CHECK(passes.input_gradient[at(TrainingPart::parameters)] ==
        Approx(16 * layer.input_gradient[at(TrainingPart::parameters)] + gathered));
  CHECK(passes.weight_gradient[at(TrainingPart::gradients)] ==
        Approx(16 * layer.weight_gradient[at(TrainingPart::gradients)] +
               of(profile::Collective::reduce_scatter, 4 * head) +
               of(profile::Collective::reduce_scatter, 4 * depth)));
}

namespace {

std::vector<double> activations(const TrainingJob& job) {
  std::vector<double> ranks;
  for (const model::StageMemory& memory : training_step(job).memory) {
    ranks.push_back(static_cast<double>(memory.activations.count));
  }
  return ranks;
}

}  // namespace

TEST_CASE("with overlapped experts a rank holds one layer more") {
  TrainingJob made = qwen_on_h100(8, 1, 8, 64);
  const double layer = activations(made)[0] / 48;
  made.layout.expert_overlap = true;
  CHECK(activations(made)[0] == Approx(49 * layer).epsilon(1e-9));
  // 8 chunks of 6 layers on 2 ranks, groups of 2: 9 and 7 chunks in flight.
  made = qwen_on_h100(16, 2, 8, 128);
  made.layout.sizes.virtual_pipeline = 4;
  CHECK(activations(made)[0] == Approx(9 * 6 * layer).epsilon(1e-9));
  made.layout.expert_overlap = true;
  CHECK(activations(made)[0] == Approx((9 * 6 + 1) * layer).epsilon(1e-9));
  CHECK(activations(made)[1] == Approx((7 * 6 + 1) * layer).epsilon(1e-9));
}

// In the first pair a dense layer, 201,344 + 139,264 bytes per token, comes beside the prediction
// depth's, then larger ones go than come.
TEST_CASE("and of unlike layers what comes before the first one goes") {
  TrainingJob made = qwen_on_h100(8, 1, 8, 24);
  made.model = std::make_shared<const model::Model>(model::Model::load("deepseek-v3"));
  made.layout.stages = parallel::parse_pipeline_layout("Et*61mL");
  const double without = activations(made)[0];
  made.layout.expert_overlap = true;
  CHECK(activations(made)[0] - without == Approx(4096.0 * 340'608).margin(2));
}

TEST_CASE("GPipe keeps the logits of all micro-batches on the rank of the head") {
  TrainingJob made = qwen_on_h100(32, 4, 8, 64);  // 8 data-parallel ranks, m 8
  const auto logits = [&](int rank) { return training_step(made).memory[at(rank)].logits.count; };
  CHECK(logits(3) == 6LL * 151'936 * 4096);
  made.layout.schedule = parallel::ScheduleKind::gpipe;
  CHECK(logits(3) == (4LL * 8 + 2) * 151'936 * 4096);
  CHECK(logits(2) == 0);
}

TEST_CASE("HybridEP reserves room for the tokens of all ranks") {
  TrainingJob made = qwen_on_h100(256, 4, 64, 1024);
  made.profile = std::make_shared<const profile::Profile>(profile::Profile::load("gb200"));
  made.cluster = std::make_shared<const cluster::Cluster>(cluster::Cluster::load("gb200-nvl72"));
  made.model = std::make_shared<const model::Model>(model::Model::load("deepseek-v3"));
  made.layout.stages = parallel::parse_pipeline_layout("Et*15|t*16|t*15|t*15L");
  const auto buffers = [&](const char* dispatcher) {
    made.dispatcher =
        std::make_shared<const profile::Dispatcher>(profile::Dispatcher::load(dispatcher));
    return training_step(made).memory[0].exchange_buffers.count;
  };
  // Rows in bf16, a scale of 4 bytes for each 128 values, 4 bytes for each of 256 experts.
  const std::int64_t tokens = 64 * 4096;
  CHECK(buffers("hybridep") == tokens * (7168 * 2 + 7168 / 128 * 4 + 256 * 4));
  CHECK(buffers("deepep") < tokens * 7168);
  // On nodes of 8 the probabilities are of the experts of a node, 8 x 4 of them.
  made.profile = std::make_shared<const profile::Profile>(profile::Profile::load("h100-sxm"));
  made.cluster = std::make_shared<const cluster::Cluster>(cluster::Cluster::load("hgx-h100"));
  CHECK(buffers("hybridep") == tokens * (7168 * 2 + 7168 / 128 * 4 + 32 * 4));
  // Of few ranks the rows that are sent are more: 8 x 2 x 2 bytes for 8 x 2.03.
  made.layout.sizes.expert = 8;
  CHECK(buffers("hybridep") == buffers("deepep"));
}
