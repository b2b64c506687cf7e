#include "sim/training/step/step_bound.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "sim/base/numbers.hpp"
#include "sim/model/memory/data_parallel.hpp"
#include "sim/training/job/rank_memory.hpp"

namespace moesim::training {
namespace {

using model::AttentionKind;
using parallel::ScheduleKind;

// Sums of whole picoseconds and of fractions differ by rounding.
constexpr double rounding = 1 - 1e-8;
// More rows take at least this share of the price of fewer: prices of fitted curves may fall a
// little where rows grow. Assumed; step_bound_test.cpp holds bounds against the steps themselves.
constexpr double least_share_of_rows = 0.95;

bool takes_turns(const parallel::ScheduleShape& shape) {
  return shape.kind == ScheduleKind::one_f_one_b || shape.kind == ScheduleKind::interleaved ||
         shape.kind == ScheduleKind::gpipe;
}

using Contents = std::vector<model::StageContent>;  // of each chunk

// Least times of one micro-batch.
struct LeastTimes {
  double forward = 0;
  double backward = 0;

  void add(const LeastTimes& other, double times) {
    forward += times * other.forward;
    backward += times * other.backward;
  }
};

class LeastStages {
 public:
  LeastStages(const TrainingJob& job, const LayerPrices& prices, std::span<const Passes> moe)
      : job_(job), prices_(prices), moe_(moe), hides_(job.layout.shape().has_pairs()) {
    for (const model::StageContent& content : chunk_contents(job))
      stages_.push_back(least(content));
  }
  const LeastTimes& operator[](int stage) const { return stages_[index_of(stage)]; }

 private:
  double least(const PartTimes& times) const {
    if (!hides_) return sum(times);
    double hidden = 0;
    for (const TrainingPart part :
         {TrainingPart::dispatch, TrainingPart::combine, TrainingPart::host})
      hidden += times[at(part)];
    return sum(times) - hidden;
  }
  LeastTimes least(const Passes& passes) const {
    return {least(passes.forward), least(passes.input_gradient) + least(passes.weight_gradient)};
  }
  // Of the MoE layers with prices of their own the next one, else the one that stands for all.
  const Passes& moe_layer(AttentionKind attention) {
    if (moe_.empty()) return prices_.layer(true, attention);
    return moe_[moe_.size() == 1 ? 0 : next_++];
  }
  LeastTimes least_layer(bool is_moe, AttentionKind attention) {
    const Passes& layer = is_moe ? moe_layer(attention) : prices_.layer(false, attention);
    LeastTimes times = least(layer);
    // Which layers of a stage are not recomputed is left open; the host waits less in these.
    if (job_.recompute.full == model::FullRecompute::block) {
      times.backward -= layer.input_gradient[at(TrainingPart::recompute)];
      if (!hides_) times.backward -= layer.input_gradient[at(TrainingPart::host)];
    }
    return times;
  }
  void add_moe_layers(double count, AttentionKind attention, LeastTimes& times) {
    if (moe_.size() < 2) {
      if (count > 0) times.add(least_layer(true, attention), count);
      return;
    }
    for (int layer = 0; layer < count; ++layer) times.add(least_layer(true, attention), 1);
  }
  void add_layers(const model::StageContent& content, LeastTimes& times) {
    if (!job_.model->linear) {
      const auto softmax = AttentionKind::softmax;
      if (content.dense_layers > 0) times.add(least_layer(false, softmax), content.dense_layers);
      return add_moe_layers(content.moe_layers, softmax, times);
    }
    for (int place = 0; place < content.layers(); ++place) {
      const int layer = content.first_layer + place;
      const AttentionKind attention = model::attention_kind(*job_.model, layer);
      times.add(least_layer(job_.model->is_moe_layer(layer), attention), 1);
    }
  }
  LeastTimes least(const model::StageContent& content) {
    LeastTimes times;
    add_layers(content, times);
    if (content.embedding) times.add(least(prices_.embedding()), 1);
    if (content.mtp_depths > 0) {
      const bool is_moe = job_.model->is_moe_prediction();
      const AttentionKind attention = model::attention_kind(*job_.model, job_.model->layers);
      times.add(least(prices_.prediction()), content.mtp_depths);
      if (is_moe) {
        add_moe_layers(content.mtp_depths, attention, times);
      } else {
        times.add(least_layer(false, attention), content.mtp_depths);
      }
    }
    if (content.head) times.add(least(prices_.head()), 1);
    if (content.mtp_losses > 0) times.add(least(prices_.head(false)), content.mtp_losses);
    return times;
  }

  const TrainingJob& job_;
  const LayerPrices& prices_;
  std::span<const Passes> moe_;
  std::size_t next_ = 0;  // of several
  bool hides_;
  std::vector<LeastTimes> stages_;
};

double makespan_bound(const TrainingJob& job, const LayerPrices& prices,
                      std::span<const Passes> moe) {
  const parallel::ScheduleShape shape = job.layout.shape();
  const bool dual = shape.kind == ScheduleKind::dualpipe;
  const LeastStages stages(job, prices, moe);
  double lead = 0;
  double tail = 0;
  double most = 0;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    double busy = 0;
    for (const int stage : shape.stages_of(rank)) {
      busy += stages[stage].forward + stages[stage].backward;
    }
    busy *= dual ? 0.5 * shape.micro_batches : shape.micro_batches;
    most = std::max(most, lead + busy + tail);
    if (dual || rank + 1 == shape.ranks) continue;
    const double p2p = prices.exchanges().boundary_us(rank, rank + 1);
    lead += stages[rank].forward + p2p;
    // Weight gradients that wait fill the end.
    if (takes_turns(shape)) tail += stages[rank].backward + p2p;
  }
  return most;
}

// The optimizer and the host, without gradients and weights that its passes do not cover.
double end_bound(const TrainingJob& job, const LayerPrices& prices) {
  const Contents contents = chunk_contents(job);
  const model::ShardSizes shards = job.shards();
  double most = 0;
  for (int rank = 0; rank < job.layout.sizes.pipeline; ++rank) {
    const model::StageParameters held = rank_parameters(job, contents, rank, job.experts());
    const double bytes = model::optimizer_bytes(held, shards, job.states);
    most = std::max(most, prices.memory_us(bytes, profile::MemoryKernel::streaming));
  }
  return most + job.host.step_us;
}

// Passes of its chunks that a rank holds at some time, at least.
int passes_held(const parallel::ScheduleShape& shape, int rank) {
  const int after = shape.ranks - 1 - rank;
  switch (shape.kind) {
    case ScheduleKind::gpipe:
      return shape.micro_batches;
    case ScheduleKind::one_f_one_b:
    case ScheduleKind::zb_h1:
    case ScheduleKind::zb_h2:
      return std::min(shape.micro_batches, after + 1);
    case ScheduleKind::interleaved:
      return std::min(shape.micro_batches * shape.virtual_stages,
                      2 * after + (shape.virtual_stages - 1) * shape.group_size() + 1);
    case ScheduleKind::dualpipe:
    case ScheduleKind::dualpipe_v:
      break;
  }
  return 1;
}

// Without copies of experts, which take more: a bound of it.
model::StageMemoryQuery least_memory_query(const TrainingJob& job, double imbalance) {
  model::StageMemoryQuery query =
      memory_query(job, job.capacity_factor > 0 ? job.capacity_factor : imbalance);
  query.experts = job.experts();
  query.copies = 0;
  return query;
}

// The numbers of the MoE layers that a pipeline rank holds, as drawn_moe_layers() has them.
std::vector<int> moe_layers_of(const TrainingJob& job, const Contents& contents, int rank) {
  const bool predicts = job.model->is_moe_prediction();
  std::vector<int> first = {0};  // of each chunk
  for (const model::StageContent& content : contents) {
    first.push_back(first.back() +
                    static_cast<int>(content.moe_layers + (predicts ? content.mtp_depths : 0)));
  }
  std::vector<int> layers;
  for (const int stage : job.layout.shape().stages_of(rank)) {
    for (int layer = first[index_of(stage)]; layer < first[index_of(stage) + 1]; ++layer) {
      layers.push_back(layer);
    }
  }
  return layers;
}

Bytes rank_bound(const TrainingJob& job, const Contents& contents, int rank, double imbalance) {
  const parallel::ScheduleShape shape = job.layout.shape();
  const std::vector<int> own = shape.stages_of(rank);
  const auto layers = [&](int stage) {
    return contents[index_of(stage)].layers() + contents[index_of(stage)].mtp_depths;
  };
  model::StageMemoryQuery query = least_memory_query(job, imbalance);
  double fewest = layers(own.front());
  for (const int stage : own) {
    fewest = std::min(fewest, layers(stage));
    query.chunks.push_back({contents[index_of(stage)], 0});
  }
  const double layers_held = fewest * passes_held(shape, rank);
  Bytes least;
  std::set<std::tuple<double, double, double, double, double>> seen;  // that hold the same
  for (std::size_t place = 0; place < own.size(); ++place) {
    const model::StageContent& content = query.chunks[place].content;
    const double moe_layers = content.moe_layers + content.mtp_depths;
    const double dense_again = model::dense_among_first(*job.model, content, job.recompute.layers);
    const double linear_again =
        model::linear_among_first(*job.model, content, job.recompute.layers);
    const bool is_new = seen.emplace(content.dense_layers, moe_layers, dense_again,
                                     content.linear_layers, linear_again)
                            .second;
    if (!is_new) continue;
    const double each = layers(own[place]);
    query.chunks[place].in_flight = each > 0 ? layers_held / each : 0;
    const Bytes all = model::stage_memory(query).total();
    query.chunks[place].in_flight = 0;
    least = least.count == 0 ? all : std::min(least, all);
  }
  return least;
}

}  // namespace

Passes least_moe_layer(const LayerPrices& prices, const MoeLoad& load, AttentionKind attention) {
  Passes passes = prices.moe_layer(load, attention);
  const int slices = prices.exchanges().query().shards.expert_tensor;
  for (PartTimes* times : {&passes.forward, &passes.input_gradient, &passes.weight_gradient}) {
    for (const TrainingPart part :
         {TrainingPart::experts, TrainingPart::router, TrainingPart::recompute,
          TrainingPart::dispatch, TrainingPart::combine}) {
      (*times)[at(part)] *= least_share_of_rows;
    }
    // Slices of experts exchange rows among them.
    if (slices > 1) (*times)[at(TrainingPart::tensor)] *= least_share_of_rows;
  }
  return passes;
}

std::vector<Passes> least_moe_layers(const LayerPrices& prices, const MoeLoad& load,
                                     const model::Model& model) {
  std::vector<Passes> layers = {least_moe_layer(prices, load, AttentionKind::softmax)};
  if (!model.linear) return layers;
  const Passes linear = least_moe_layer(prices, load, AttentionKind::linear);
  const Passes softmax = layers.front();
  layers.clear();
  for (int number = 0; number < model.moe_layers() + model.mtp_depths; ++number) {
    const bool is_linear = prices.attention_of_moe_layer(number) == AttentionKind::linear;
    layers.push_back(is_linear ? linear : softmax);
  }
  return layers;
}

// The same load in all micro-batches and sets is the price of every pass; else the least of them is
// no more than that of each. Of several steps the mean: a pipeline of mean passes takes no longer
// than the mean of its pipelines, as its time is convex in them.
std::vector<Passes> drawn_moe_layers(const LayerPrices& prices, const DrawnLoads& loads,
                                     bool are_own) {
  const bool is_exact = are_own && loads.sets() == 1 && loads.micro_batches() == 1;
  std::map<std::pair<MoeLoad, AttentionKind>, Passes> known;
  const auto least_passes = [&](int layer, int step) -> const Passes& {
    MoeLoad least = loads.at(layer, 0, 0, step);
    for (int set = 0; set < loads.sets(); ++set) {
      for (int micro = 0; micro < loads.micro_batches(); ++micro) {
        least = least_of(least, loads.at(layer, set, micro, step));
      }
    }
    const AttentionKind attention = prices.attention_of_moe_layer(layer);
    const auto [place, is_new] = known.try_emplace({least, attention});
    if (is_new) {
      place->second =
          is_exact ? prices.moe_layer(least, attention) : least_moe_layer(prices, least, attention);
    }
    return place->second;
  };
  std::vector<Passes> layers;
  for (int layer = 0; layer < loads.layers(); ++layer) {
    Passes mean;
    for (int step = 0; step < loads.steps(); ++step) mean.add(least_passes(layer, step));
    mean.divide(loads.steps());
    layers.push_back(mean);
  }
  return layers;
}

double step_bound_us(const TrainingJob& job, const LayerPrices& prices,
                     std::span<const Passes> least) {
  return rounding * (makespan_bound(job, prices, least) + end_bound(job, prices));
}

Bytes memory_bound(const TrainingJob& job, const DrawnLoads* loads) {
  const Contents contents = chunk_contents(job);
  const int ranks = job.layout.sizes.pipeline;
  Bytes most;
  // Embedding and most passes in flight; experts without the model's dense layers; the logits.
  for (const int rank : std::set<int>{0, std::min(1, ranks - 1), ranks - 1}) {
    const double load = loads == nullptr ? forced_load(job).computed
                                         : loads->held_load(moe_layers_of(job, contents, rank));
    most = std::max(most, rank_bound(job, contents, rank, load));
  }
  return most;
}

}  // namespace moesim::training
