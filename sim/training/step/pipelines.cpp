#include "sim/training/step/pipelines.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "sim/base/numbers.hpp"
#include "sim/training/drawn/rank_capacity.hpp"
#include "sim/training/job/rank_memory.hpp"

namespace moesim::training {
namespace {

using parallel::ChunkPass;
using parallel::OperationKind;
using parallel::PipelineOperation;

double backward_us(const Passes& passes) {
  return sum(passes.input_gradient) + sum(passes.weight_gradient);
}

parallel::StageTimes times_of(const Passes& passes) {
  return {Picoseconds::from_us(sum(passes.forward)),
          Picoseconds::from_us(sum(passes.input_gradient)),
          Picoseconds::from_us(sum(passes.weight_gradient))};
}

}  // namespace

Pipelines::Pipelines(const TrainingJob& job, std::shared_ptr<const DrawnLoads> loads)
    : job_(job),
      prices_(job),
      loads_(loads || !job.routing ? std::move(loads) : std::make_shared<const DrawnLoads>(job)),
      shape_(job.layout.shape()),
      schedule_(parallel::make_schedule(shape_)),
      stages_(make_stages()) {
  if (job.routing && job.routing->rank_capacity > 0) most_load_ = rank_capacity_load(job);
  if (job.recompute.full == model::FullRecompute::block) {
    kept_ = std::make_unique<KeptLayers>(job);
  }
}

double Pipelines::micro_batches_of_stage() const {
  const double share = shape_.kind == parallel::ScheduleKind::dualpipe ? 0.5 : 1;
  return share * shape_.micro_batches;
}

std::vector<Stage> Pipelines::make_stages() const {
  const model::Model& model = *job_.model;
  std::vector<Stage> stages;
  int moe_layer = 0;
  const parallel::PipelineLayout layout = parallel::stages_of(model, job_.layout);
  const std::vector<model::StageContent> contents = chunk_contents(model, layout);
  for (const parallel::PipelineChunk& chunk : layout.chunks) {
    Stage stage;
    stage.chunk = chunk;
    stage.content = contents[stages.size()];
    for (int layer = 0; layer < chunk.layers; ++layer) {
      const bool is_moe = model.is_moe_layer(chunk.first_layer + layer);
      stage.layers.push_back(is_moe ? moe_layer++ : dense_layer);
    }
    for (int depth = 0; depth < chunk.mtp; ++depth) {
      const bool is_moe = model.is_moe_prediction();
      stage.predictions.push_back(is_moe ? moe_layer++ : dense_layer);
    }
    stages.push_back(stage);
  }
  return stages;
}

Pipelines::KeptLayers::KeptLayers(const TrainingJob& asked)
    : job(training::without_recompute(asked)), prices(job) {}

MoeLoad Pipelines::drawn_load(int layer, DrawnPlace place, int micro_batch) const {
  return limited(loads_->at(layer, place.set, micro_batch, place.step), most_load_);
}

const Passes& Pipelines::priced_by(const LayerPrices& prices, LoadPasses& known, PricedLayer asked,
                                   DrawnPlace place, int micro_batch) {
  const auto [layer, attention] = asked;
  if (layer == dense_layer || !loads_) return prices.layer(layer != dense_layer, attention);
  const MoeLoad load = drawn_load(layer, place, micro_batch);
  const auto [passes, fresh] = known.try_emplace({load, attention});
  if (fresh) passes->second = prices.moe_layer(load, attention);
  return passes->second;
}

Pipelines::KeptLayers* Pipelines::kept_at(std::size_t place) const {
  return kept_ && place >= index_of(job_.recompute.layers) ? kept_.get() : nullptr;
}

std::vector<const Passes*> Pipelines::layers_of(DrawnPlace place, const ChunkPass& pass) {
  const Stage& stage = stages_[index_of(pass.stage)];
  std::vector<const Passes*> layers;
  const auto add = [&](int number, KeptLayers* kept) {
    const PricedLayer layer = {number, attention_at(stage, layers.size())};
    layers.push_back(kept == nullptr
                         ? &priced_by(prices_, known_, layer, place, pass.micro_batch)
                         : &priced_by(kept->prices, kept->known, layer, place, pass.micro_batch));
  };
  for (const int layer : stage.layers) add(layer, kept_at(layers.size()));
  for (const int layer : stage.predictions) add(layer, nullptr);
  return layers;
}

void Pipelines::add_beside_layers(Passes& passes, int number) const {
  const Stage& stage = stages_[index_of(number)];
  if (stage.chunk.embedding) passes.add(prices_.embedding());
  // A depth of prediction is a projection, a layer like the last one (layers_of()), and where the
  // loss is computed the head again.
  int losses = 0;
  for (std::size_t depth = 0; depth < stage.predictions.size(); ++depth) {
    passes.add(prices_.prediction());
    if (stage.chunk.loss) passes.add(prices_.head(losses++ == 0));
  }
  while (losses < stage.losses()) passes.add(prices_.head(losses++ == 0));
}

int Pipelines::layer_number(const Stage& stage, std::size_t place) const {
  return place < stage.layers.size() ? stage.chunk.first_layer + static_cast<int>(place)
                                     : job_.model->layers;
}

model::AttentionKind Pipelines::attention_at(const Stage& stage, std::size_t place) const {
  return model::attention_kind(*job_.model, layer_number(stage, place));
}

Passes Pipelines::beside_layers(int stage) const {
  Passes passes;
  add_beside_layers(passes, stage);
  return passes;
}

Passes Pipelines::total(DrawnPlace place, const ChunkPass& pass) {
  Passes passes;
  for (const Passes* layer : layers_of(place, pass)) passes.add(*layer);
  add_beside_layers(passes, pass.stage);
  return passes;
}

Pipelines::Pair Pipelines::pair_of(const PipelineRun& run, const ChunkPass& forward,
                                   const ChunkPass& backward) {
  Pair pair;
  double layers_us = 0;
  double host_us = 0;  // one layer forward and one backward: a whole layer's launches
  for (const Passes* layer : layers_of(run.place, forward)) {
    pair.forward.push_back(pieces_of(*layer));
    layers_us += sum(layer->forward);
  }
  const std::vector<const Passes*> backward_layers = layers_of(run.place, backward);
  for (auto layer = backward_layers.rbegin(); layer != backward_layers.rend(); ++layer) {
    pair.backward.push_back(pieces_of(**layer));
    layers_us += backward_us(**layer);
  }
  for (const int number : {forward.stage, backward.stage}) {
    const Stage& stage = stages_[index_of(number)];
    const std::size_t own = stage.layers.size();
    for (std::size_t place = 0; place < own; ++place) {
      const KeptLayers* const kept = kept_at(place);
      const LayerPrices& prices = kept == nullptr ? prices_ : kept->prices;
      const bool is_moe = stage.layers[place] != dense_layer;
      host_us += prices.host_us(is_moe, attention_at(stage, place)) / 2;
    }
    for (const int layer : stage.predictions) {
      host_us += prices_.host_us(layer != dense_layer, attention_at(stage, own)) / 2;
    }
  }
  pair.beside = Picoseconds::from_us(std::max(
      0.0, sum(passes(run, forward).forward) + backward_us(passes(run, backward)) - layers_us));
  pair.rules.sms = std::max(1, static_cast<int>(job_.profile->device().sms));
  pair.rules.exchange_sms = exchange_sms();
  pair.launches = Picoseconds::from_us(host_us);
  return pair;
}

// SMs that an exchange beside computation takes from it: at most half of them, which no shipped GPU
// reaches.
int Pipelines::exchange_sms() const {
  // A CTA for each of NCCL's channels between ranks: 32 in a node of 8 B200 by its start-up log
  // (NVIDIA/nccl issue 1646; 16 on H800, issue 892). Assumed for all.
  constexpr int nccl_sms = 32;
  const int usual = job_.dispatcher ? job_.dispatcher->training_sms : nccl_sms;
  const int wanted = job_.exchange_sms > 0 ? job_.exchange_sms : usual;
  return std::min(wanted, static_cast<int>(job_.profile->device().sms) / 2);
}

// Whatever is hidden, the host launches all of it.
Picoseconds Pipelines::pair_time(const PipelineRun& run, const ChunkPass& forward,
                                 const ChunkPass& backward) {
  const Pair pair = pair_of(run, forward, backward);
  return std::max(parallel::overlapped_time(pair.forward, pair.backward, pair.rules),
                  pair.launches) +
         pair.beside;
}

bool Pipelines::hides_exchanges() const {
  return shape_.expert_overlap || (parallel::is_dual(shape_.kind) && job_.model->moe);
}

const Passes& Pipelines::passes(const PipelineRun& run, const ChunkPass& pass) const {
  const bool shared = run.passes.size() == stages_.size();
  return run
      .passes[(shared ? 0 : index_of(pass.micro_batch) * stages_.size()) + index_of(pass.stage)];
}

// Behind the prediction depths their hidden states travel with the model's. Of the two directions
// of DualPipe, which leave a stage from different ranks, the slower one.
std::vector<Picoseconds> Pipelines::boundary_times() const {
  std::vector<Picoseconds> times;
  int depths = 0;
  for (int stage = 0; stage + 1 < shape_.stages(); ++stage) {
    depths += stages_[index_of(stage)].chunk.mtp;
    double time_us = 0;
    for (const int micro_batch : {0, shape_.micro_batches - 1}) {
      const int from = shape_.rank_of(stage, micro_batch);
      const int to = shape_.rank_of(stage + 1, micro_batch);
      time_us = std::max(time_us, prices_.exchanges().boundary_us(from, to, 1 + depths));
    }
    times.push_back(Picoseconds::from_us(time_us));
  }
  return times;
}

PipelineRun Pipelines::run_of(DrawnPlace place) {
  PipelineRun run;
  run.place = place;
  const int different = loads_ ? loads_->micro_batches() : 1;
  std::vector<parallel::StageTimes> times;
  for (int micro = 0; micro < different; ++micro) {
    for (int stage = 0; stage < shape_.stages(); ++stage) {
      run.passes.push_back(total(place, {micro, stage}));
      times.push_back(times_of(run.passes.back()));
    }
  }
  const auto of = [&](const ChunkPass& pass) -> const parallel::StageTimes& {
    return times[index_of(pass.micro_batch % different) * stages_.size() + index_of(pass.stage)];
  };
  const bool hides = hides_exchanges();
  std::vector<std::optional<Picoseconds>> pairs(stages_.size() * stages_.size());
  const auto paired = [&](const PipelineOperation& operation) {
    std::optional<Picoseconds>& known =
        pairs[index_of(operation.pass.stage) * stages_.size() + index_of(operation.paired.stage)];
    if (!known || different > 1) known = pair_time(run, operation.pass, operation.paired);
    return *known;
  };
  const parallel::OperationTime time = [&](const PipelineOperation& operation) {
    const parallel::StageTimes& own = of(operation.pass);
    if (operation.kind != OperationKind::forward_backward) return own.of(operation.kind);
    if (hides) return paired(operation);
    return own.forward + of(operation.paired).of(OperationKind::backward);
  };
  // Megatron-Core sends and receives between the passes of 1f1b, and beside them when interleaved.
  run.run = parallel::run_schedule(schedule_, time, boundary_times(),
                                   shape_.kind == parallel::ScheduleKind::one_f_one_b);
  return run;
}

PipelineRun Pipelines::slowest(int step) {
  PipelineRun slowest = run_of({step, 0});
  for (int set = 1; loads_ && set < loads_->sets(); ++set) {
    PipelineRun run = run_of({step, set});
    if (run.run.makespan > slowest.run.makespan) slowest = std::move(run);
  }
  return slowest;
}

}  // namespace moesim::training
