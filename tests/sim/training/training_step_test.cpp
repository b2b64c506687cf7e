#include "sim/training/training_step.hpp"

#include "sim/training/step_end.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/shipped.hpp"
#include "sim/model/training_exchanges.hpp"
#include "sim/training/exchange_prices.hpp"
#include "sim/training/pipelines.hpp"
#include "sim/training/rank_memory.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::training;

namespace {

// Qwen3-30B-A3B on H100 nodes.
TrainingJob job(int gpus, int pipeline, int expert, std::int64_t global_batch) {
  TrainingJob made;
  made.profile = std::make_shared<const profile::Profile>(profile::Profile::load("h100-sxm"));
  made.cluster = std::make_shared<const cluster::Cluster>(cluster::Cluster::load("hgx-h100"));
  made.model = std::make_shared<const model::Model>(model::Model::load("qwen3-30b-a3b"));
  made.layout.layout.gpus = gpus;
  made.layout.layout.pipeline = pipeline;
  made.layout.layout.expert = expert;
  made.layout.sequence_length = 4096;
  made.layout.global_batch = global_batch;
  made.host = {0, 0, 0};
  return made;
}

// An H100 whose copies to and from the host were measured.
std::shared_ptr<const profile::Profile> copying_at(double bytes_per_second) {
  auto document = nlohmann::ordered_json::parse(read_file(find_document("hardware", "h100-sxm")));
  document["devices"][0]["host_copy_bytes_per_second"] = {{"value", bytes_per_second},
                                                          {"unit", "bytes/s per direction"},
                                                          {"origin", "measured"},
                                                          {"source", "a test"}};
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("own-copies-{}.json", getpid()))
          .string();
  write_file_atomically(path, document.dump());
  auto loaded = std::make_shared<const profile::Profile>(profile::Profile::load(path));
  std::filesystem::remove(path);
  return loaded;
}

std::size_t at(Part part) { return static_cast<std::size_t>(part); }
std::size_t at(int index) { return static_cast<std::size_t>(index); }
double part(const TrainingStep& step, Part part) { return step.parts[at(part)]; }

}  // namespace

TEST_CASE("the busiest rank of random logits has the excess that draws show") {
  // Means of 20 to 40 draws at 4,096 tokens a rank.
  CHECK(random_imbalance(256, 8, 32, 4096) == Approx(1.012).epsilon(0.002));
  CHECK(random_imbalance(256, 8, 64, 4096) == Approx(1.012).epsilon(0.002));
  CHECK(random_imbalance(128, 8, 8, 4096) == Approx(1.007).epsilon(0.002));
  CHECK(random_imbalance(128, 8, 1, 4096) == 1);
  // Four times the tokens: half the excess.
  CHECK(random_imbalance(128, 8, 8, 4 * 4096) - 1 ==
        Approx((random_imbalance(128, 8, 8, 4096) - 1) / 2));
}

TEST_CASE("the parts of a step add up to it") {
  for (const int pipeline : {1, 4}) {
    const TrainingStep step = training_step(job(32, pipeline, 8, 256));
    CHECK(std::accumulate(step.parts.begin(), step.parts.end(), 0.0) == Approx(step.step_us));
    for (const double each : step.parts) CHECK(each >= 0);
  }
}

TEST_CASE("the head of a prediction depth is computed with the loss") {
  TrainingJob made = job(32, 4, 8, 64);
  made.model = std::make_shared<const model::Model>(model::Model::load("deepseek-v3"));
  made.layout.stages = parallel::parse_pipeline_layout("Et*30|t*30|tm|L");
  Pipelines pipelines(made);
  const PipelineRun run = pipelines.slowest();
  const LayerPrices& prices = pipelines.prices();
  const auto head_us = [&](int stage) {
    return pipelines.passes(run, {0, stage}).forward[at(Part::head)];
  };
  CHECK(head_us(1) == 0);
  CHECK(head_us(2) == Approx(prices.prediction().forward[at(Part::head)]));
  CHECK(head_us(3) == Approx(2 * prices.head().forward[at(Part::head)]));
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

TEST_CASE("a rank with prediction depths has one embedding, its own or a copy") {
  TrainingJob made = job(32, 4, 8, 64);
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
  TrainingJob made = job(32, 4, 8, 64);
  model::Model predicting = *made.model;
  predicting.mtp_depths = 2;
  made.model = std::make_shared<const model::Model>(predicting);
  const auto head_us = [&](const char* layout) {
    made.layout.stages = parallel::parse_pipeline_layout(layout);
    Pipelines pipelines(made);
    const PipelineRun run = pipelines.slowest();
    return pipelines.passes(run, {0, 3}).forward[at(Part::head)];
  };
  const LayerPrices prices(made);
  const double head = prices.head().forward[at(Part::head)];
  const double prediction = prices.prediction().forward[at(Part::head)];
  CHECK(head_us("Et*16|t*16|t*8|t*8mmL") == Approx(3 * head + 2 * prediction));
  CHECK(head_us("Et*16|t*16|t*16m|mL") == Approx(3 * head + prediction));
  CHECK(head_us("Et*16|t*16|t*16mm|L") == Approx(3 * head));
}

TEST_CASE("shared weights of the ends are gathered once for all losses, with the depth's own") {
  TrainingJob made = job(32, 4, 8, 64);  // 8 ranks share all but the experts, which have one
  made.model = std::make_shared<const model::Model>(model::Model::load("deepseek-v3"));
  made.layout.stages = parallel::parse_pipeline_layout("Et*16|t*15|t*15|t*15mL");
  made.states.zero = 3;
  made.overlaps_parameters = made.overlaps_gradients = false;
  Pipelines pipelines(made);
  const PipelineRun run = pipelines.slowest();
  const LayerPrices& prices = pipelines.prices();
  const auto of = [&](profile::Collective kind, double bytes) {
    return prices.exchanges().inside_instance_us(kind, parallel::GroupKind::data_context, bytes);
  };
  const double vocabulary = 129280.0 * 7168;
  const double head = vocabulary + 7168;                             // with the final norm
  const double depth = vocabulary + 2.0 * 7168 * 7168 + 3.0 * 7168;  // reads the embedding
  const Passes& passes = pipelines.passes(run, {0, 3});
  const Passes& layer = prices.layer(true);  // 15 and the depth's
  const double gathered = of(profile::Collective::all_gather, 2 * head) +
                          of(profile::Collective::all_gather, 2 * depth);
  CHECK(passes.forward[at(Part::parameters)] ==
        Approx(16 * layer.forward[at(Part::parameters)] + gathered));
  CHECK(passes.input_gradient[at(Part::parameters)] ==
        Approx(16 * layer.input_gradient[at(Part::parameters)] + gathered));
  CHECK(passes.input_gradient[at(Part::gradients)] ==
        Approx(16 * layer.input_gradient[at(Part::gradients)] +
               of(profile::Collective::reduce_scatter, 4 * head) +
               of(profile::Collective::reduce_scatter, 4 * depth)));
}

TEST_CASE("offloading costs what computing does not hide") {
  TrainingJob plain = job(8, 1, 8, 64);
  const TrainingStep before = training_step(plain);
  TrainingJob offloading = plain;
  offloading.offload.add(model::OffloadModule::attn_norm);
  const TrainingStep hidden = training_step(offloading);
  CHECK(part(hidden, Part::offload) == 0);
  CHECK(hidden.step_us == Approx(before.step_us));
  CHECK(hidden.peak_memory() < before.peak_memory());
  // All of them: what each copy takes beyond the layer's own pass, at 0.8 of PCIe 5.0.
  CHECK(plain.profile->device().host_bandwidth.bytes_per_second == 64e9);
  for (const auto& known : model::offload_names) offloading.offload.add(known.value);
  const TrainingStep all = training_step(offloading);
  const LayerPrices prices(plain);
  const Passes& layer = prices.layer(true);
  const double bytes =
      4096 * model::offloaded_bytes(*plain.model, model::LayerKind::moe, offloading.shards(),
                                    offloading.activation_rules(prices.imbalance()));
  const double copy_us = bytes / (0.8 * 64e9) * 1e6;
  const double backward_us = sum(layer.input_gradient) + sum(layer.weight_gradient);
  const double waits_us =
      std::max(0.0, copy_us - sum(layer.forward)) + std::max(0.0, copy_us - backward_us);
  CHECK(waits_us > 0);
  CHECK(part(all, Part::offload) == Approx(8 * 48 * waits_us));
  TrainingJob measured = offloading;
  measured.profile = copying_at(0.8 * 64e9);
  CHECK(part(training_step(measured), Part::offload) == Approx(part(all, Part::offload)));
  measured.profile = copying_at(0.4 * 64e9);
  CHECK(part(training_step(measured), Part::offload) > part(all, Part::offload));
  offloading.recompute.full = model::FullRecompute::uniform;
  CHECK_THROWS_WITH(training_step(offloading), ContainsSubstring("--recompute full"));
  offloading.recompute = {};
  offloading.graphs = Graphs::layers;
  CHECK_THROWS_WITH(training_step(offloading), ContainsSubstring("--cuda-graphs layers"));
}

TEST_CASE("rows in the format of the products make dispatch shorter, not combine") {
  TrainingJob wide = job(64, 1, 64, 64);
  wide.states.precision = model::Precision::fp8_block;
  TrainingJob narrow = wide;
  narrow.low_precision_dispatch = true;
  CHECK(narrow.dispatched_element_bytes() == 1.03125);
  const ExchangePrices of_wide(wide);
  const ExchangePrices of_narrow(narrow);
  const auto times = [](const ExchangePrices& prices, profile::MoeStage stage) {
    return prices.dispatch_us(stage, {});
  };
  CHECK(times(of_narrow, profile::MoeStage::combine) == times(of_wide, profile::MoeStage::combine));
  // 448 MiB over NICs: nearly in proportion to the bytes.
  CHECK(times(of_narrow, profile::MoeStage::dispatch) /
            times(of_wide, profile::MoeStage::dispatch) ==
        Approx(1.03125 / 2).epsilon(0.1));
  // Forward the rows, backward the gradients that go to the experts: both pairs by a quarter.
  const TrainingStep before = training_step(wide);
  const TrainingStep after = training_step(narrow);
  const double ratio = (part(after, Part::dispatch) + part(after, Part::combine)) /
                       (part(before, Part::dispatch) + part(before, Part::combine));
  CHECK(ratio == Approx(0.75).epsilon(0.05));
  CHECK(part(after, Part::experts) < part(before, Part::experts));  // cast by column alone
  CHECK(part(after, Part::router) > part(before, Part::router));    // cast before the dispatch
}

TEST_CASE("a dispatcher takes rows to all slices of an expert") {
  TrainingJob whole = job(8, 1, 8, 8);
  whole.dispatcher =
      std::make_shared<const profile::Dispatcher>(profile::Dispatcher::load("deepep"));
  TrainingJob sliced = whole;
  sliced.layout.layout.expert = 4;
  sliced.layout.layout.expert_tensor = 2;
  const auto dispatch = [](const TrainingJob& asked) {
    return ExchangePrices(asked).dispatch_us(profile::MoeStage::dispatch, {});
  };
  // The same 8 GPUs. 128 experts, k 8: a token meets 5.339 of 8 ranks; of 4 pairs 3.64, so 7.28.
  CHECK(dispatch(sliced) / dispatch(whole) == Approx(7.28 / 5.339).epsilon(0.1));
  // No gathering of rows and no reduction besides, as an all-to-all of one slice needs.
  CHECK(part(training_step(sliced), Part::tensor) == 0);
  TrainingJob nccl = sliced;
  nccl.dispatcher = nullptr;
  CHECK(part(training_step(nccl), Part::tensor) > 0);
}

TEST_CASE("exchanges of tensor ranks hide under their products but for the first piece") {
  TrainingJob apart = job(8, 1, 4, 8);
  apart.layout.layout.tensor = 2;
  TrainingJob beside = apart;
  beside.overlaps_tensor = true;
  const double exposed = part(training_step(apart), Part::tensor);
  const double left = part(training_step(beside), Part::tensor);
  CHECK(exposed > 0);
  CHECK(left >= exposed / 2);
  CHECK(left < exposed);
  CHECK(training_step(beside).step_us < training_step(apart).step_us);
}

TEST_CASE("without pipeline a step is its micro-batches and its end") {
  const TrainingStep few = training_step(job(8, 1, 8, 64));
  const TrainingStep many = training_step(job(8, 1, 8, 128));
  CHECK(few.micro_batches == 8);
  CHECK(many.micro_batches == 16);
  CHECK(few.bubble_share == 0);
  const auto end = [](const TrainingStep& step) {
    return part(step, Part::gradients) + part(step, Part::parameters) + part(step, Part::optimizer);
  };
  CHECK(end(few) > 0);
  CHECK(end(many) == Approx(end(few)));
  CHECK(many.step_us - end(many) == Approx(2 * (few.step_us - end(few))));
}

TEST_CASE("more pipeline ranks with as many micro-batches leave a larger bubble") {
  const TrainingStep two = training_step(job(16, 2, 8, 64));
  const TrainingStep four = training_step(job(32, 4, 8, 64));
  CHECK(two.micro_batches == four.micro_batches);
  CHECK(two.bubble_share > 0);
  CHECK(four.bubble_share > two.bubble_share);
}

TEST_CASE("a step has the tokens, FLOPs and speed of its batch") {
  const TrainingStep step = training_step(job(16, 2, 8, 64));
  CHECK(step.tokens == 64 * 4096);
  CHECK(step.flops.total == Approx(23.006e9).epsilon(1e-4));  // Megatron's definition, s 4,096
  CHECK(step.tokens_per_second_per_gpu == Approx(step.tokens / (step.step_us * 1e-6) / 16));
  CHECK(step.tflops_per_gpu == Approx(step.tokens_per_second_per_gpu * step.flops.total * 1e-12));
  CHECK(step.mfu > 0);
  CHECK(step.mfu < 1);
}

TEST_CASE("recomputed work takes time and frees memory") {
  const TrainingStep kept = training_step(job(8, 1, 8, 64));
  TrainingJob again = job(8, 1, 8, 64);
  again.recompute = model::parse_recompute("full", "test");
  const TrainingStep recomputed = training_step(again);
  CHECK(part(kept, Part::recompute) == 0);
  CHECK(part(recomputed, Part::recompute) > 0);
  CHECK(recomputed.step_us > kept.step_us);
  CHECK(recomputed.peak_memory() < kept.peak_memory());
}

TEST_CASE("a slow host makes small micro-batches wait, graphs do not") {
  TrainingJob slow = job(8, 1, 8, 64);
  const double fast_us = training_step(slow).step_us;
  slow.host.launch_us = 100;
  const TrainingStep waiting = training_step(slow);
  CHECK(part(waiting, Part::host) > 0);
  CHECK(waiting.step_us > 1.5 * fast_us);
  slow.graphs = Graphs::layers;
  slow.capacity_factor = 1;
  CHECK(part(training_step(slow), Part::host) == 0);
}

TEST_CASE("overlapped exchanges of experts shorten a step across nodes") {
  TrainingJob apart = job(32, 1, 32, 256);
  const TrainingStep exposed = training_step(apart);
  apart.layout.expert_overlap = true;
  const TrainingStep hidden = training_step(apart);
  CHECK(hidden.step_us < exposed.step_us);
  CHECK(part(hidden, Part::dispatch) < part(exposed, Part::dispatch));
}

TEST_CASE("an exchange that NCCL hides takes 32 of 132 SMs from what hides it") {
  TrainingJob apart = job(8, 1, 8, 64);
  const TrainingStep exposed = training_step(apart);
  apart.layout.expert_overlap = true;
  const TrainingStep hidden = training_step(apart);
  const double exchange_us = part(exposed, Part::dispatch) + part(exposed, Part::combine);
  // Of eight micro-batches, all but the first forward and the last backward pass.
  CHECK(exposed.step_us - hidden.step_us == Approx(7.0 / 8 * 100 / 132 * exchange_us));
  apart.exchange_sms = 16;
  const TrainingStep fewer = training_step(apart);
  CHECK(exposed.step_us - fewer.step_us == Approx(7.0 / 8 * 116 / 132 * exchange_us));
}

TEST_CASE("tensor parallelism adds exchanges inside the node and divides the rest") {
  TrainingJob divided = job(16, 1, 8, 64);
  divided.layout.layout.tensor = 2;
  const TrainingStep step = training_step(divided);
  CHECK(part(step, Part::tensor) > 0);
  CHECK(step.micro_batches == 8);
  const TrainingStep whole = training_step(job(16, 1, 8, 64));
  CHECK(part(whole, Part::tensor) == 0);
  // A micro-batch's attention on two GPUs: between half the time and all of it.
  const double ratio = part(step, Part::attention) / step.micro_batches /
                       (part(whole, Part::attention) / whole.micro_batches);
  CHECK(ratio > 0.5);
  CHECK(ratio < 0.75);
}

TEST_CASE("padded experts compute their capacity, others their balance") {
  TrainingJob padded = job(8, 1, 8, 64);
  const double dropless = part(training_step(padded), Part::experts);
  padded.capacity_factor = 2;
  CHECK(part(training_step(padded), Part::experts) > 1.5 * dropless);
}

TEST_CASE("what cannot be is refused with its reason") {
  TrainingJob bad = job(12, 1, 8, 64);
  CHECK_THROWS_AS(training_step(bad), UsageError);
  TrainingJob instances = job(16, 1, 8, 64);
  instances.states.optimizer_instances = 3;
  CHECK_THROWS_WITH(training_step(instances),
                    ContainsSubstring("--optimizer-instances 3") && ContainsSubstring("16"));
  instances.states.optimizer_instances = 2;
  instances.states.zero = 0;
  CHECK_THROWS_WITH(training_step(instances), ContainsSubstring("--zero 0"));
  TrainingJob copies = job(16, 1, 8, 64);
  copies.redundant_experts = 8;
  CHECK_THROWS_WITH(training_step(copies), ContainsSubstring("--redundant-experts 8"));
}

TEST_CASE("FP8 shortens long products, not the head") {
  TrainingJob low = job(8, 1, 8, 64);
  // Products of 4,096 x 14,336; those of Qwen's small experts are shorter in bf16.
  low.model = std::make_shared<const model::Model>(model::Model::load("mixtral-8x7b"));
  low.profile = std::make_shared<const profile::Profile>(profile::Profile::load("b200-sxm"));
  low.cluster = std::make_shared<const cluster::Cluster>(cluster::Cluster::load("hgx-b200"));
  low.layout.micro_batch = 2;
  const TrainingStep wide = training_step(low);
  low.states.precision = model::Precision::mxfp8;
  const TrainingStep narrow = training_step(low);
  CHECK(part(narrow, Part::experts) < part(wide, Part::experts));
  CHECK(part(narrow, Part::experts) > part(wide, Part::experts) / 2);
  CHECK(part(narrow, Part::head) == part(wide, Part::head));
  // The weights of products are cast once, those of a prediction depth's projection too.
  CHECK(part(narrow, Part::optimizer) > part(wide, Part::optimizer));
  auto deep = std::make_shared<model::Model>(*low.model);
  deep->mtp_depths = 1;
  low.model = deep;
  const auto projection_us = [&](model::Precision precision) {
    low.states.precision = precision;
    return LayerPrices(low).prediction().forward[at(Part::head)];
  };
  CHECK(projection_us(model::Precision::mxfp8) < projection_us(model::Precision::bf16));
  low.profile = std::make_shared<const profile::Profile>(profile::Profile::load("h100-sxm"));
  low.states.precision = model::Precision::nvfp4;
  CHECK_THROWS_WITH(training_step(low), ContainsSubstring("nvfp4"));
}

TEST_CASE("DualPipe hides exchanges and has its weights twice, the optimizer's states once") {
  TrainingJob once = job(32, 4, 8, 256);
  TrainingJob dual = once;
  dual.layout.schedule = parallel::ScheduleKind::dualpipe;
  const TrainingStep plain = training_step(once);
  const TrainingStep both = training_step(dual);
  CHECK(part(both, Part::dispatch) < part(plain, Part::dispatch));
  const auto sum_of = [](const TrainingStep& step, Bytes model::StageMemory::*what) {
    double sum = 0;
    for (const model::StageMemory& rank : step.memory) {
      sum += static_cast<double>((rank.*what).count);
    }
    return sum;
  };
  using model::StageMemory;
  CHECK(sum_of(both, &StageMemory::weights) == 2 * sum_of(plain, &StageMemory::weights));
  CHECK(sum_of(both, &StageMemory::gradients) == 2 * sum_of(plain, &StageMemory::gradients));
  CHECK(sum_of(both, &StageMemory::optimizer) ==
        Approx(sum_of(plain, &StageMemory::optimizer)).epsilon(1e-9));
  // Gradients are cleared twice: 4 bytes each, whatever is shared.
  CHECK(part(both, Part::optimizer) > part(plain, Part::optimizer));
  CHECK(part(both, Part::optimizer) < 1.2 * part(plain, Part::optimizer));
}

TEST_CASE("gradients that are shared are reduced in every micro-batch") {
  TrainingJob twice = job(16, 1, 8, 128);
  const double once = part(training_step(twice), Part::gradients);
  twice.states.zero = 2;
  CHECK(part(training_step(twice), Part::gradients) == Approx(8 * once));
  // DualPipe: each of a rank's two stages sees one half of its 32 micro-batches.
  twice = job(64, 4, 8, 512);
  twice.layout.schedule = parallel::ScheduleKind::dualpipe;
  twice.overlaps_gradients = false;
  const double both = part(training_step(twice), Part::gradients);
  twice.states.zero = 2;
  CHECK(part(training_step(twice), Part::gradients) == Approx(16 * both));
}

TEST_CASE("shared weights are gathered twice and reduced in every micro-batch") {
  TrainingJob shared = job(32, 1, 8, 32 * 4);
  shared.overlaps_gradients = shared.overlaps_parameters = false;
  const TrainingStep once = training_step(shared);
  shared.states.zero = 3;
  const TrainingStep each = training_step(shared);
  // Four micro-batches; messages are layers instead of buckets of 40 M.
  CHECK(part(each, Part::parameters) / part(once, Part::parameters) == Approx(2 * 4).epsilon(0.2));
  CHECK(part(each, Part::gradients) / part(once, Part::gradients) == Approx(4).epsilon(0.2));
  CHECK(each.peak_memory() < once.peak_memory());
  CHECK(std::accumulate(each.parts.begin(), each.parts.end(), 0.0) == Approx(each.step_us));
  // A quarter of the computation beside them hides them, where they overlap.
  shared.overlaps_gradients = shared.overlaps_parameters = true;
  const TrainingStep hidden = training_step(shared);
  CHECK(hidden.step_us < each.step_us);
  CHECK(hidden.step_us > each.step_us - 0.26 * part(each, Part::experts) -
                             0.26 * part(each, Part::attention) - 0.26 * part(each, Part::head) -
                             0.26 * part(each, Part::router) - 0.26 * part(each, Part::dispatch) -
                             0.26 * part(each, Part::combine) - 1);
}

TEST_CASE("instances gather inside a node and reduce across once per step") {
  TrainingJob inside = job(32, 1, 1, 32 * 4);
  inside.model = std::make_shared<const model::Model>(model::Model::load("olmoe-1b-7b"));
  inside.states.zero = 3;
  const TrainingStep all = training_step(inside);
  inside.states.optimizer_instances = 4;  // 8 ranks share: one node
  const TrainingStep hybrid = training_step(inside);
  CHECK(part(hybrid, Part::parameters) < part(all, Part::parameters));
  CHECK(hybrid.step_us < all.step_us);
  CHECK(hybrid.peak_memory() > all.peak_memory());
}

TEST_CASE("without replicas there is nothing to share") {
  TrainingJob alone = job(8, 1, 8, 64);
  alone.layout.layout.context = 1;
  alone.layout.layout.tensor = 8;
  const TrainingStep once = training_step(alone);
  alone.states.zero = 3;
  CHECK(training_step(alone).step_us == Approx(once.step_us));
}

TEST_CASE("one kernel for experts has no activation and fewer casts of its own") {
  TrainingJob fused = job(8, 1, 8, 64);
  fused.profile = std::make_shared<const profile::Profile>(profile::Profile::load("b200-sxm"));
  fused.cluster = std::make_shared<const cluster::Cluster>(cluster::Cluster::load("hgx-b200"));
  fused.layout.micro_batch = 4;
  const auto saved = [&](model::Precision precision) {
    fused.states.precision = precision;
    fused.fused_experts = false;
    const double apart = part(training_step(fused), Part::experts);
    fused.fused_experts = true;
    return apart - part(training_step(fused), Part::experts);
  };
  // bf16: the activation, 2 x (3 + 5) bytes per inner cell, at least at the peak bandwidth.
  const double rows = 4096.0 * 4 * 8 * 48 * 2;  // k rows per token, layers, micro-batches
  const double bytes = rows * 768 * 2 * (3 + 5);
  CHECK(saved(model::Precision::bf16) > bytes / 8e12 * 1e6);
  CHECK(saved(model::Precision::mxfp8) > saved(model::Precision::bf16));
}

TEST_CASE("norms of queries and keys take time") {
  TrainingJob normed = job(8, 1, 8, 64);
  const double with = part(training_step(normed), Part::attention);
  model::Model plain = *normed.model;
  CHECK(plain.query_key_norm);
  plain.query_key_norm = false;
  normed.model = std::make_shared<const model::Model>(plain);
  const double without = part(training_step(normed), Part::attention);
  CHECK(with > without);
  CHECK(with < 1.2 * without);
}

TEST_CASE("a ring is hidden by core attention alone, once per direction") {
  TrainingJob ring = job(16, 1, 8, 16);
  ring.layout.layout.context = 16;
  ring.layout.sequence_length = 32768;
  TrainingJob gathered = ring;
  gathered.layout.context_method = model::ContextMethod::all_gather;
  const double hidden = part(training_step(ring), Part::context);
  const double exposed = part(training_step(gathered), Part::context);
  CHECK(exposed > 0);
  CHECK(hidden < exposed);
  CHECK(hidden >= exposed - part(training_step(ring), Part::attention));
}

TEST_CASE("recomputing a module takes its own forward time, whatever the split") {
  TrainingJob activations = job(16, 1, 8, 64);
  activations.layout.layout.tensor = 2;
  activations.recompute = model::parse_recompute("moe_act", "test");
  const double whole = part(training_step(activations), Part::recompute);
  activations.layout.layout.expert_tensor = 2;
  activations.layout.layout.expert = 4;
  // Twice the rows of half the width.
  CHECK(part(training_step(activations), Part::recompute) == Approx(whole).epsilon(0.05));
}

TEST_CASE("slices of experts gather and reduce as many rows as their rank computes") {
  TrainingJob sliced = job(16, 1, 4, 64);
  const double none = LayerPrices(sliced).moe_layer({1, 1}).forward[at(Part::tensor)];
  sliced.layout.layout.expert_tensor = 2;
  const LayerPrices prices(sliced);
  const auto slices_us = [&](double load) {
    return prices.moe_layer({load, 1}).forward[at(Part::tensor)] - none;
  };
  CHECK(none == 0);
  CHECK(slices_us(1) > 0);
  // Long messages: time goes with bytes.
  CHECK(slices_us(3) == Approx(3 * slices_us(1)).epsilon(0.1));
}

TEST_CASE("behind an all-to-all a rank permutes the rows of its own tokens") {
  TrainingJob made = job(256, 1, 128, 512);  // one expert a rank: no rows to sort by expert
  const auto router_us = [&](double load) {
    return LayerPrices(made).moe_layer({load, load}).forward[at(Part::router)];
  };
  const double own_us = router_us(1);
  CHECK(router_us(3) == own_us);
  CHECK(router_us(0.5) < own_us);  // a capacity drops rows
  made.layout.layout.expert_tensor = 2;
  CHECK(router_us(1) == own_us);  // slices gather their rows behind the exchange
  made.layout.layout.expert_tensor = 1;
  made.capacity_factor = 1.5;  // padded: all slots
  CHECK(router_us(1.5) > 1.2 * own_us);
  made.capacity_factor = 0;
  made.dispatcher =
      std::make_shared<const profile::Dispatcher>(profile::Dispatcher::load("deepep"));
  CHECK(router_us(3) > 1.5 * router_us(1));
}

TEST_CASE("rows of slices are sorted by expert where these come from several ranks") {
  TrainingJob made = job(16, 1, 1, 64);  // all experts on each rank
  const double alone_us = LayerPrices(made).moe_layer({1, 1}).forward[at(Part::router)];
  made.layout.layout.expert_tensor = 2;
  CHECK(LayerPrices(made).moe_layer({1, 1}).forward[at(Part::router)] > 1.2 * alone_us);
}

TEST_CASE("what is recomputed exchanges again") {
  // The shared experts are in the MoE layer, with what their tensor ranks exchange.
  TrainingJob shared = job(64, 1, 8, 64);
  shared.model = std::make_shared<const model::Model>(model::Model::load("deepseek-v3-4layers"));
  shared.layout.layout.tensor = 8;
  const auto again = [](TrainingJob asked, const char* modules) {
    asked.recompute = model::parse_recompute(modules, "test");
    return part(training_step(asked), Part::recompute);
  };
  TrainingJob without = shared;
  model::Model less = *shared.model;
  less.moe->shared_ffn = 0;
  without.model = std::make_shared<const model::Model>(less);
  const double of_shared = again(shared, "shared_experts");
  CHECK(of_shared > 0);
  CHECK(again(shared, "moe") == Approx(again(without, "moe") + of_shared));
  CHECK(again(shared, "moe,shared_experts") == Approx(again(shared, "moe")));
  // Core attention of context ranks gathers keys and values: 48 layers, 8 micro-batches.
  TrainingJob pieces = job(16, 1, 8, 16);
  pieces.layout.layout.context = 8;
  pieces.layout.context_method = model::ContextMethod::all_gather;
  const ExchangePrices exchanges(pieces);
  const double gather_us =
      exchanges.times(model::context_exchanges(exchanges.query(), false)).context_us;
  CHECK(gather_us > 0);
  CHECK(again(pieces, "core_attn") ==
        Approx(48 * 8 * (KernelPrices(pieces).core_attention_us(false) + gather_us)));
}

TEST_CASE("a dispatcher crosses as many domains as its group is placed on") {
  TrainingJob rack = job(128, 1, 64, 512);
  rack.profile = std::make_shared<const profile::Profile>(profile::Profile::load("gb200"));
  rack.cluster = std::make_shared<const cluster::Cluster>(cluster::Cluster::load("gb200-nvl72"));
  rack.dispatcher =
      std::make_shared<const profile::Dispatcher>(profile::Dispatcher::load("hybridep"));
  const auto dispatch = [&](int ranks) {
    TrainingJob placed = rack;
    placed.ranks_per_domain = ranks;
    return ExchangePrices(placed).dispatch_us(profile::MoeStage::dispatch, {});
  };
  const double two = dispatch(32);
  CHECK(two > 1.2 * dispatch(64));
  CHECK(dispatch(16) > two);
  // 72 ranks in each domain: the second group of 64 lies on two of them.
  CHECK(dispatch(72) == two);
}

TEST_CASE("messages between stages of a node do not cross NICs") {
  TrainingJob halves = job(16, 4, 4, 64);  // two stages on each of two nodes
  Pipelines pipelines(halves);
  const parallel::ScheduleRun run = pipelines.slowest().run;
  const auto gap = [&](int rank) {
    return run.ranks[at(rank + 1)].spans[0].start - run.ranks[at(rank)].spans[0].end;
  };
  CHECK(gap(0) == gap(2));
  CHECK(gap(0) < gap(1));
  const ExchangePrices prices(halves);
  CHECK(gap(1) == Picoseconds::from_us(prices.boundary_us(1, 2)));
  CHECK(prices.boundary_us(1, 1) == 0);
}

TEST_CASE("messages between stages share the uplinks of their switches") {
  TrainingJob tapered = job(32, 4, 8, 64);  // a stage is a node
  const double full_us = ExchangePrices(tapered).boundary_us(0, 1);
  auto cluster = std::make_shared<cluster::Cluster>(*tapered.cluster);
  cluster->levels.front().below = 1;
  // Each rail's switch has a sixteenth of its node's NIC up.
  cluster->levels.front().uplink = Bandwidth(cluster->nic.bytes_per_second / 16);
  tapered.cluster = cluster;
  const double latency_us = cluster->nic_latency_us;
  CHECK(ExchangePrices(tapered).boundary_us(0, 1) - latency_us ==
        Approx(16 * (full_us - latency_us)));
}

TEST_CASE("a step ends when the last rank's reductions and the longest optimizer have") {
  // Reductions lie behind each rank's own last pass, not behind the pipeline's.
  parallel::ScheduleRun run;
  run.makespan = Picoseconds::from_us(100);
  run.ranks.resize(2);
  run.ranks[0].spans = {{Picoseconds(0), Picoseconds::from_us(100)}};
  run.ranks[1].spans = {{Picoseconds(0), Picoseconds::from_us(70)}};
  std::vector<RankEnd> ends(2);
  const auto of = [](RankEnd& end, Part part) -> double& {
    return end.parts[static_cast<std::size_t>(part)];
  };
  of(ends[0], Part::gradients) = 5;
  of(ends[0], Part::optimizer) = 20;
  of(ends[1], Part::gradients) = 50;
  of(ends[1], Part::optimizer) = 8;
  const auto gradients = static_cast<std::size_t>(Part::gradients);
  CHECK(joint_end(run, ends)[gradients] == Approx(20));  // 70 + 50 - 100
  CHECK(sum(joint_end(run, ends)) == Approx(40));        // both optimizers run at once
  of(ends[1], Part::gradients) = 10;
  CHECK(joint_end(run, ends)[gradients] == Approx(5));
}
