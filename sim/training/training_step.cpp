#include "sim/training/training_step.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/model/data_parallel.hpp"

namespace moesim::training {
namespace {

using parallel::GroupKind;
using profile::Collective;
using profile::MemoryKernel;

constexpr double bucket_parameters = 40e6;  // megatron/core, distributed_data_parallel.py
constexpr double bucket_parameters_per_rank = 1e6;

std::size_t at(Part part) { return static_cast<std::size_t>(part); }
std::size_t at(int index) { return static_cast<std::size_t>(index); }

// The bytes of weights that ranks gather, in the place of their number: those of products in
// `narrow` bytes, embedding, head, router and norms in bf16.
model::StageParameters gathered_as(const model::StageParameters& held, double narrow) {
  constexpr double bf16 = 2;
  return {narrow * held.gemm + bf16 * (held.dense - held.gemm), narrow * held.expert, 0};
}

// One chunk of the pipeline.
struct Stage {
  model::StageContent content;
  Passes passes;
  std::vector<bool> moe_layers;  // of each of its layers, in order

  double backward_us() const { return sum(passes.input_gradient) + sum(passes.weight_gradient); }
};

class Step {
 public:
  explicit Step(const TrainingJob& job)
      : job_(job), prices_(job), shape_(job.layout.shape()), stages_(stages()) {}

  TrainingStep run();

 private:
  std::vector<Stage> stages() const;
  parallel::PipelineTimes times() const;
  Picoseconds pair_time(const Stage& forward, const Stage& backward) const;
  PartTimes rank_parts(int rank, const parallel::RankRun& run, Picoseconds makespan) const;
  model::StageParameters parameters(int rank) const;
  double buckets_us(Collective kind, GroupKind group, double parameters, double bytes,
                    double& last) const;
  double exposed_us(Collective kind, const model::StageParameters& parameters, double bytes,
                    double window_us, bool overlaps) const;
  PartTimes end_of_step(int rank) const;
  std::vector<model::StageMemory> memory(const parallel::Schedule& schedule) const;
  // All stages whose weights the rank has: under dualpipe those of both directions.
  template <class Visit>
  void each_stage_of(int rank, const Visit& visit) const {
    const bool is_dual = shape_.kind == parallel::ScheduleKind::dualpipe;
    for (int stage = 0; stage < shape_.stages(); ++stage) {
      const int holder = shape_.rank_of(stage, 0);
      if (holder == rank || (is_dual && holder == shape_.ranks - 1 - rank)) {
        visit(stages_[at(stage)]);
      }
    }
  }

  const TrainingJob& job_;
  LayerPrices prices_;
  parallel::ScheduleShape shape_;
  std::vector<Stage> stages_;
};

std::vector<Stage> Step::stages() const {
  const model::Model& model = *job_.model;
  std::vector<Stage> stages;
  for (const parallel::PipelineChunk& chunk : parallel::stages_of(model, job_.layout).chunks) {
    Stage stage;
    stage.content = model::layers_of(model, chunk.first_layer, chunk.layers);
    stage.content.embedding = chunk.embedding;
    stage.content.head = chunk.loss;
    stage.content.mtp_depths = chunk.mtp;
    for (int layer = 0; layer < chunk.layers; ++layer) {
      stage.moe_layers.push_back(model.is_moe_layer(chunk.first_layer + layer));
      stage.passes.add(prices_.layer(stage.moe_layers.back()));
    }
    // Of whole layers recomputed in blocks, the first so many of a chunk.
    if (job_.recompute.full == model::FullRecompute::block && chunk.layers > 0) {
      stage.passes.input_gradient[at(Part::recompute)] *=
          std::min(1.0, static_cast<double>(job_.recompute.layers) / chunk.layers);
    }
    if (chunk.embedding) stage.passes.add(prices_.embedding());
    // A depth of prediction is a projection, a layer like the last one, and the head again.
    for (int depth = 0; depth < chunk.mtp; ++depth) {
      stage.passes.add(prices_.prediction());
      stage.passes.add(prices_.layer(model.is_moe_layer(model.layers - 1)));
      stage.passes.add(prices_.head());
    }
    if (chunk.loss) stage.passes.add(prices_.head());
    stages.push_back(stage);
  }
  return stages;
}

// Layers side by side; what a stage has beside its layers is added.
Picoseconds Step::pair_time(const Stage& forward, const Stage& backward) const {
  std::vector<parallel::LayerPieces> ahead;
  std::vector<parallel::LayerPieces> back;
  double layers_us = 0;
  double host_us = 0;  // one layer forward and one backward: a whole layer's launches
  for (const bool moe : forward.moe_layers) {
    ahead.push_back(prices_.pieces(moe));
    layers_us += sum(prices_.layer(moe).forward);
    host_us += prices_.host_us(moe) / 2;
  }
  for (auto moe = backward.moe_layers.rbegin(); moe != backward.moe_layers.rend(); ++moe) {
    back.push_back(prices_.pieces(*moe));
    const Passes& layer = prices_.layer(*moe);
    layers_us += sum(layer.input_gradient) + sum(layer.weight_gradient);
    host_us += prices_.host_us(*moe) / 2;
  }
  const double beside_us =
      std::max(0.0, sum(forward.passes.forward) + backward.backward_us() - layers_us);
  parallel::OverlapRules rules;
  rules.sms = std::max(1, static_cast<int>(job_.profile->device().sms));
  rules.exchange_sms = job_.dispatcher ? job_.dispatcher->usual_sms : 0;
  // Whatever is hidden, the host launches all of it.
  const Picoseconds layers =
      std::max(parallel::overlapped_time(ahead, back, rules), Picoseconds::from_us(host_us));
  return layers + Picoseconds::from_us(beside_us);
}

parallel::PipelineTimes Step::times() const {
  parallel::PipelineTimes times;
  for (const Stage& stage : stages_) {
    times.stages.push_back({Picoseconds::from_us(sum(stage.passes.forward)),
                            Picoseconds::from_us(sum(stage.passes.input_gradient)),
                            Picoseconds::from_us(sum(stage.passes.weight_gradient))});
  }
  const double bytes = 2 * job_.tokens_per_rank() * static_cast<double>(job_.model->hidden);
  times.p2p = Picoseconds::from_us(shape_.ranks > 1 ? prices_.send_us(bytes) : 0);
  // Megatron-Core sends and receives between the passes of 1f1b, and beside them when interleaved.
  times.p2p_occupies_rank = shape_.kind == parallel::ScheduleKind::one_f_one_b;
  const bool is_dual = shape_.kind == parallel::ScheduleKind::dualpipe ||
                       shape_.kind == parallel::ScheduleKind::dualpipe_v;
  if (!shape_.expert_overlap && !(is_dual && job_.model->moe)) return times;
  using Key = std::pair<std::vector<bool>, std::pair<double, double>>;
  std::map<std::pair<Key, Key>, Picoseconds> known;
  const auto key = [](const Stage& stage) {
    return Key{stage.moe_layers, {sum(stage.passes.forward), stage.backward_us()}};
  };
  for (const Stage& forward : stages_) {
    for (const Stage& backward : stages_) {
      const auto [place, fresh] = known.try_emplace({key(forward), key(backward)});
      if (fresh) place->second = pair_time(forward, backward);
      times.pairs.push_back(place->second);
    }
  }
  return times;
}

// What the rank computes, all micro-batches; the rest of the makespan it waits.
PartTimes Step::rank_parts(int rank, const parallel::RankRun& run, Picoseconds makespan) const {
  PartTimes parts{};
  const double share = shape_.kind == parallel::ScheduleKind::dualpipe ? 0.5 : 1;
  const double passes = share * shape_.micro_batches;
  const auto add = [&](const Stage& stage) {
    for (std::size_t part = 0; part < parts.size(); ++part) {
      parts[part] += passes * (stage.passes.forward[part] + stage.passes.input_gradient[part] +
                               stage.passes.weight_gradient[part]);
    }
  };
  each_stage_of(rank, add);
  // What pairs hide is of the exchanges of experts, then of waiting for the host.
  double hidden = std::max(0.0, sum(parts) - run.busy.us());
  for (const std::vector<Part>& hides :
       {std::vector{Part::dispatch, Part::combine}, std::vector{Part::host}}) {
    double all = 0;
    for (const Part part : hides) all += parts[at(part)];
    const double taken = std::min(hidden, all);
    for (const Part part : hides) parts[at(part)] *= all > 0 ? 1 - taken / all : 1;
    hidden -= taken;
  }
  // Sums of whole picoseconds and of fractions differ by rounding.
  const double waiting = makespan.us() - sum(parts);
  parts[at(Part::p2p)] = waiting > 1e-9 * makespan.us() ? waiting : 0;
  return parts;
}

model::StageParameters Step::parameters(int rank) const {
  model::StageParameters found;
  const int experts = job_.model->moe ? job_.model->moe->experts : 0;
  each_stage_of(rank, [&](const Stage& stage) {
    const model::StageParameters each =
        model::stage_parameters(*job_.model, stage.content, job_.shards(), experts);
    found.dense += each.dense;
    found.expert += each.expert;
    found.gemm += each.gemm;
  });
  return found;
}

// All buckets of `parameters`, each of `bytes` per element; `last` is one bucket's time.
double Step::buckets_us(Collective kind, GroupKind group, double parameters, double bytes,
                        double& last) const {
  const double ranks = job_.layout.layout.group_size(group);
  if (ranks < 2 || parameters <= 0) return 0;
  const double largest = std::max(bucket_parameters, bucket_parameters_per_rank * ranks);
  const double buckets = std::ceil(parameters / largest);
  const double each = prices_.exchange_us(kind, group, parameters / buckets * bytes);
  last = std::max(last, each);
  return buckets * each;
}

// Beyond `window_us` of compute that hides all but the last bucket.
double Step::exposed_us(Collective kind, const model::StageParameters& parameters, double bytes,
                        double window_us, bool overlaps) const {
  double last = 0;
  const double all = buckets_us(kind, GroupKind::data_context, parameters.dense, bytes, last) +
                     buckets_us(kind, GroupKind::expert_data, parameters.expert, bytes, last);
  return overlaps ? std::max(last, all - window_us) : all;
}

PartTimes Step::end_of_step(int rank) const {
  PartTimes parts{};
  const model::StageParameters held = parameters(rank);
  double forward_us = 0;
  double backward_us = 0;
  each_stage_of(rank, [&](const Stage& stage) {
    forward_us += sum(stage.passes.forward);
    backward_us += stage.backward_us();
  });
  const model::StateRules& states = job_.states;
  if (states.zero == 0) {
    parts[at(Part::gradients)] +=
        exposed_us(Collective::all_reduce, held, 4, backward_us, job_.overlaps_gradients);
  } else {
    // Shared gradients are reduced in every micro-batch.
    const int times = states.zero >= 2 ? shape_.micro_batches : 1;
    parts[at(Part::gradients)] += times * exposed_us(Collective::reduce_scatter, held, 4,
                                                     backward_us, job_.overlaps_gradients);
    const double narrow =
        model::gathered_weight_bytes(states.precision, states.low_precision_gather);
    parts[at(Part::parameters)] += exposed_us(Collective::all_gather, gathered_as(held, narrow), 1,
                                              forward_us, job_.overlaps_parameters);
  }
  const model::ShardSizes shards = job_.shards();
  const double owned = model::owned_parameters(held, shards, states.zero);
  const double bytes = (model::adam_bytes(states) + 4) * owned +  // the norm reads the gradients
                       model::clear_gradient_bytes(held, shards, states.zero);
  parts[at(Part::optimizer)] += prices_.memory_us(bytes, MemoryKernel::streaming);
  parts[at(Part::host)] += job_.host.step_us;
  return parts;
}

std::vector<model::StageMemory> Step::memory(const parallel::Schedule& schedule) const {
  std::vector<model::StageMemory> memory;
  for (int rank = 0; rank < shape_.ranks; ++rank) {
    model::StageMemoryQuery query;
    query.model = job_.model.get();
    query.shards = job_.shards();
    query.experts = job_.model->moe ? job_.model->moe->experts : 0;
    query.tokens = job_.tokens();
    query.states = job_.states;
    query.activations.precision = job_.states.precision;
    query.activations.recompute = job_.recompute;
    query.activations.choices = job_.experts_per_token();
    query.activations.load = job_.capacity_factor > 0 ? job_.capacity_factor : prices_.imbalance();
    query.activations.sequence_parallel = job_.layout.sequence_parallel;
    query.activations.length = static_cast<double>(job_.layout.sequence_length);
    std::vector<double> weights;
    for (const Stage& stage : stages_) {
      weights.push_back(stage.content.layers() + stage.content.mtp_depths);
    }
    const std::vector<int> held = parallel::held_at_peak(schedule, rank, weights, false);
    for (int stage = 0; stage < shape_.stages(); ++stage) {
      if (held[at(stage)] == 0 && shape_.rank_of(stage, 0) != rank) continue;
      query.chunks.push_back({stages_[at(stage)].content, static_cast<double>(held[at(stage)])});
    }
    memory.push_back(model::stage_memory(query));
  }
  return memory;
}

TrainingStep Step::run() {
  const parallel::Schedule schedule = parallel::make_schedule(shape_);
  const parallel::ScheduleRun run = parallel::run_schedule(schedule, times());
  TrainingStep step;
  step.bubble_share = run.bubble_share();
  step.imbalance = prices_.imbalance();
  step.micro_batches = shape_.micro_batches;
  const auto busier = [](const parallel::RankRun& one, const parallel::RankRun& other) {
    return one.busy < other.busy;
  };
  const auto busiest = std::max_element(run.ranks.begin(), run.ranks.end(), busier);
  step.busiest_rank = static_cast<int>(busiest - run.ranks.begin());
  step.parts = rank_parts(step.busiest_rank, *busiest, run.makespan);
  // All ranks wait for the slowest at the gradient norm and at the end.
  PartTimes end{};
  for (int rank = 0; rank < shape_.ranks; ++rank) {
    const PartTimes each = end_of_step(rank);
    if (sum(each) > sum(end)) end = each;
  }
  for (std::size_t part = 0; part < end.size(); ++part) step.parts[part] += end[part];
  step.step_us = sum(step.parts);
  step.memory = memory(schedule);
  const parallel::ParallelLayout& sizes = job_.layout.layout;
  step.tokens = static_cast<double>(job_.layout.micro_batch * job_.layout.sequence_length) *
                shape_.micro_batches * sizes.data();
  step.flops = model::model_flops(*job_.model, static_cast<double>(job_.layout.sequence_length),
                                  job_.experts_per_token(),
                                  parallel::stages_of(*job_.model, job_.layout).mtp());
  step.tokens_per_second_per_gpu = step.tokens / step.step_us * 1e6 / sizes.gpus;
  step.tflops_per_gpu = step.tokens_per_second_per_gpu * step.flops.total * 1e-12;
  step.mfu = step.tflops_per_gpu * 1e12 / job_.profile->device().peak_bf16_flops;
  return step;
}

}  // namespace

Bytes TrainingStep::peak_memory() const {
  Bytes most;
  for (const model::StageMemory& each : memory) most = std::max(most, each.total());
  return most;
}

TrainingStep training_step(const TrainingJob& job) {
  parallel::check_layout(*job.model, job.layout);
  if (job.states.zero == 3) {
    throw UsageError("--zero 3: steps that shard the weights themselves are not modelled");
  }
  if (job.dispatcher && job.layout.layout.expert_tensor > 1) {
    throw UsageError(
        "--dispatcher with --expert-tensor-parallel: dispatchers exchange among all ranks of an "
        "expert's slices, which is not modelled: all-to-all");
  }
  return Step(job).run();
}

}  // namespace moesim::training
