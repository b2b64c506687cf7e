#pragma once

#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "sim/parallel/overlapped_layers.hpp"
#include "sim/parallel/schedule_run.hpp"
#include "sim/training/drawn/drawn_loads.hpp"
#include "sim/training/prices/layer_prices.hpp"

namespace moesim::training {

inline constexpr int dense_layer = -1;

// One chunk of the pipeline.
struct Stage {
  parallel::PipelineChunk chunk;
  model::StageContent content;
  // Decoder layers, and those of prediction depths: the number of an MoE layer, or dense_layer.
  std::vector<int> layers;
  std::vector<int> predictions;

  // Computed here: the model's own, and those of all prediction depths, on chunks before too.
  int losses() const { return chunk.loss ? 1 + static_cast<int>(content.mtp_losses) : 0; }
};

// Where drawn loads belong: a step of DrawnLoads::steps(), a set of ranks.
struct DrawnPlace {
  int step = 0;
  int set = 0;
};

// How the pipeline of a set of ranks ran.
struct PipelineRun {
  parallel::ScheduleRun run;
  DrawnPlace place;
  std::vector<Passes> passes;  // [micro-batch, stage], of all micro-batches, or of one for all
};

// The pipelines of a step: one for each set of ranks (StageDivision), all with the same schedule.
// With routing drawn per micro-batch each takes its own time in every chunk; otherwise all sets and
// micro-batches are the same, and one set is run.
class Pipelines {
 public:
  // `loads`: those of drawn_shape(job) and job.routing; null: drawn, where the job has routing.
  explicit Pipelines(const TrainingJob& job, std::shared_ptr<const DrawnLoads> loads = nullptr);

  const parallel::ScheduleShape& shape() const { return shape_; }
  const parallel::Schedule& schedule() const { return schedule_; }
  const std::vector<Stage>& stages() const { return stages_; }
  const LayerPrices& prices() const { return prices_; }
  const DrawnLoads* loads() const { return loads_.get(); }  // null: balanced
  // The load of an MoE layer, at most what a rank's buffer takes. Precondition: loads().
  MoeLoad drawn_load(int layer, DrawnPlace place, int micro_batch) const;
  // That a rank takes through each of its stages. Of DualPipe half of them begin at either end of
  // the pipeline: a rank, which holds a stage of both directions, takes half through each.
  double micro_batches_of_stage() const;

  // Whether the exchanges of a forward_backward operation run beside its computation.
  bool hides_exchanges() const;

  // The set that ends last in a step of DrawnLoads::steps(); the first of equals.
  PipelineRun slowest(int step = 0);
  const Passes& passes(const PipelineRun& run, const parallel::ChunkPass& pass) const;
  // The passes of a chunk's layers in their order, prediction depths behind the decoder. Where
  // whole layers are recomputed in blocks, the first so many of a chunk's decoder layers are.
  std::vector<const Passes*> layers_of(DrawnPlace place, const parallel::ChunkPass& pass);
  // The number in the model, from 0 on, of the layer at `place` of a stage. All prediction depths
  // have the number model.layers.
  int layer_number(const Stage& stage, std::size_t place) const;
  model::AttentionKind attention_at(const Stage& stage, std::size_t place) const;
  // What a chunk has beside its layers: embedding, head, of prediction depths what is before
  // theirs.
  Passes beside_layers(int stage) const;
  // A forward beside a backward chunk: its layers side by side, and what comes beside these.
  struct Pair {
    std::vector<parallel::LayerPieces> forward;
    std::vector<parallel::LayerPieces> backward;  // the last layer first
    parallel::OverlapRules rules;
    Picoseconds launches;  // the host takes at least that long for the layers
    Picoseconds beside;    // beside_layers() of both
  };
  Pair pair_of(const PipelineRun& run, const parallel::ChunkPass& forward,
               const parallel::ChunkPass& backward);
  int exchange_sms() const;
  double hidden_share() const { return job_.hidden_share; }  // of TrainingJob

 private:
  using LoadPasses = std::map<std::pair<MoeLoad, model::AttentionKind>, Passes>;  // of MoE layers
  // Layers that are not computed again, where whole layers are recomputed in blocks.
  struct KeptLayers {
    TrainingJob job;
    LayerPrices prices;
    LoadPasses known;
    explicit KeptLayers(const TrainingJob& asked);
  };

  std::vector<Stage> make_stages() const;
  // Prices of the layer at this place in its chunk; null: it is computed again, or nothing is in
  // blocks.
  KeptLayers* kept_at(std::size_t place) const;
  struct PricedLayer {
    int layer = dense_layer;  // as in Stage::layers
    model::AttentionKind attention = model::AttentionKind::softmax;
  };
  // The price of a layer of one micro-batch. References stay valid.
  const Passes& priced_by(const LayerPrices& prices, LoadPasses& known, PricedLayer asked,
                          DrawnPlace place, int micro_batch);
  void add_beside_layers(Passes& passes, int number) const;
  Passes total(DrawnPlace place, const parallel::ChunkPass& pass);
  PipelineRun run_of(DrawnPlace place);
  std::vector<Picoseconds> boundary_times() const;
  Picoseconds pair_time(const PipelineRun& run, const parallel::ChunkPass& forward,
                        const parallel::ChunkPass& backward);
  const TrainingJob& job_;
  LayerPrices prices_;
  std::shared_ptr<const DrawnLoads> loads_;
  parallel::ScheduleShape shape_;
  parallel::Schedule schedule_;
  std::vector<Stage> stages_;
  double most_load_ = std::numeric_limits<double>::infinity();  // that a rank's buffer takes
  LoadPasses known_;
  std::unique_ptr<KeptLayers> kept_;
};

}  // namespace moesim::training
