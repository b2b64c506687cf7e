#include "sim/training/training_step.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "sim/model/data_parallel.hpp"
#include "sim/training/job_rules.hpp"
#include "sim/training/pipelines.hpp"
#include "sim/training/rank_memory.hpp"

namespace moesim::training {
namespace {

using parallel::GroupKind;
using profile::Collective;
using profile::MemoryKernel;

constexpr double bucket_parameters = 40e6;  // megatron/core, distributed_data_parallel.py
constexpr double bucket_parameters_per_rank = 1e6;
double largest_bucket(double ranks) {
  return std::max(bucket_parameters, bucket_parameters_per_rank * ranks);
}

std::size_t at(Part part) { return static_cast<std::size_t>(part); }
std::size_t at(int index) { return static_cast<std::size_t>(index); }

class Step {
 public:
  explicit Step(const TrainingJob& job, std::shared_ptr<const DrawnLoads> loads = nullptr)
      : job_(job),
        pipelines_(job, std::move(loads)),
        prices_(pipelines_.prices()),
        shape_(pipelines_.shape()),
        contents_(chunk_contents(job)) {}

  TrainingStep run();
  // What the host takes to launch every layer of a rank once, of the rank that takes longest.
  double launches_us() const;

 private:
  double micro_batches_of_stage() const;
  PartTimes rank_parts(int rank, const PipelineRun& slowest) const;
  struct Wanted {
    Part part;
    Collective kind;
    model::StageParameters parameters;
    model::BufferBytes bytes;
  };
  BucketExchange buckets_of(Part part, Collective kind, GroupKind group, double parameters,
                            double bytes) const;
  double exposed_us(const Wanted& wanted, double window_us, bool overlaps, RankEnd& end) const;
  double copies_us(const model::StageParameters& held) const;
  double across_instances_us(const model::StageParameters& held, double hidden_us) const;
  RankEnd end_of_step(int rank, const PipelineRun& slowest) const;
  bool holds_drawn_rows() const;
  double layer_load() const;
  double drawn_load_of(int rank) const;
  std::vector<model::StageMemory> memory() const;

  const TrainingJob& job_;
  Pipelines pipelines_;
  const LayerPrices& prices_;
  const parallel::ScheduleShape& shape_;
  std::vector<model::StageContent> contents_;
};

// Of DualPipe half of them begin at either end of the pipeline, so that a rank, which holds a stage
// of both directions, takes each stage through one half.
double Step::micro_batches_of_stage() const {
  const double share = shape_.kind == parallel::ScheduleKind::dualpipe ? 0.5 : 1;
  return share * shape_.micro_batches;
}

// What the rank computes, all micro-batches; the rest of the makespan it waits.
PartTimes Step::rank_parts(int rank, const PipelineRun& slowest) const {
  PartTimes parts{};
  const auto add = [&](const Passes& passes, double times) {
    for (std::size_t part = 0; part < parts.size(); ++part) {
      parts[part] += times * (passes.forward[part] + passes.input_gradient[part] +
                              passes.weight_gradient[part]);
    }
  };
  const bool all_alike = slowest.passes.size() == static_cast<std::size_t>(shape_.stages());
  for (const int stage : shape_.stages_of(rank)) {
    if (all_alike) {
      add(pipelines_.passes(slowest, {0, stage}), micro_batches_of_stage());
      continue;
    }
    for (int micro = 0; micro < shape_.micro_batches; ++micro) {
      if (shape_.rank_of(stage, micro) != rank) continue;
      add(pipelines_.passes(slowest, {micro, stage}), 1);
    }
  }
  const parallel::RankRun& run = slowest.run.ranks[at(rank)];
  const Picoseconds makespan = slowest.run.makespan;
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

// Of `bytes` in buckets, which hold so many of the `parameters`.
BucketExchange Step::buckets_of(Part part, Collective kind, GroupKind group, double parameters,
                                double bytes) const {
  const double ranks = job_.layout.layout.group_size(group);
  if (ranks < 2 || parameters <= 0) return {part, kind, group, 0, 0};
  const double buckets = std::ceil(parameters / largest_bucket(ranks));
  return {part, kind, group, static_cast<int>(buckets),
          prices_.exchanges().inside_instance_us(kind, group, bytes / buckets)};
}

double Step::launches_us() const {
  double most = 0;
  for (int rank = 0; rank < shape_.ranks; ++rank) {
    double launches = 0;
    for (const int number : shape_.stages_of(rank)) {
      const Stage& stage = pipelines_.stages()[at(number)];
      for (const std::vector<int>& layers : {stage.layers, stage.predictions}) {
        for (const int layer : layers) launches += prices_.host_us(layer != dense_layer);
      }
    }
    most = std::max(most, launches);
  }
  return most;
}

// Beyond what `window_us` of compute hides; never the last bucket.
double Step::exposed_us(const Wanted& wanted, double window_us, bool overlaps, RankEnd& end) const {
  double last = 0;
  double all = 0;
  for (const BucketExchange& each : {buckets_of(wanted.part, wanted.kind, GroupKind::data_context,
                                                wanted.parameters.dense, wanted.bytes.dense),
                                     buckets_of(wanted.part, wanted.kind, GroupKind::expert_data,
                                                wanted.parameters.expert, wanted.bytes.expert)}) {
    if (each.buckets == 0) continue;
    last = std::max(last, each.each_us);
    all += each.buckets * each.each_us;
    end.exchanges.push_back(each);
  }
  return overlaps ? std::max(last, all - hidden_share * window_us) : all;
}

// Gradients of copies of experts go to the expert, its weights come back: assumed to be exposed.
double Step::copies_us(const model::StageParameters& held) const {
  if (job_.redundant_experts == 0) return 0;
  const model::StateRules& states = job_.states;
  const double bytes =
      model::reduced_bytes(held, states).expert + model::gathered_bytes(held, states).expert;
  const double copied = static_cast<double>(job_.redundant_experts) / job_.held_experts();
  return prices_.exchanges().exchange_us(Collective::all_to_all, GroupKind::expert, bytes * copied);
}

// The all-reduce of each share among the optimizer instances, under what the last backward pass
// still hides (`hidden_us`); the last bucket never.
double Step::across_instances_us(const model::StageParameters& held, double hidden_us) const {
  const int instances = job_.states.optimizer_instances;
  if (instances < 2) return 0;
  double all = 0;
  double last = 0;
  for (const auto& [group, parameters] : {std::pair{GroupKind::data_context, held.dense},
                                          std::pair{GroupKind::expert_data, held.expert}}) {
    const int ranks = job_.layout.layout.group_size(group);
    if (ranks < 2) continue;
    const double bytes = job_.states.gradient_bytes * parameters * instances / ranks;
    const double time_us =
        prices_.exchanges().across_instances_us(Collective::all_reduce, group, bytes);
    all += time_us;
    last = std::max(last, time_us / std::ceil(parameters / largest_bucket(ranks)));
  }
  return job_.overlaps_gradients ? std::max(last, all - hidden_us) : all;
}

RankEnd Step::end_of_step(int rank, const PipelineRun& slowest) const {
  RankEnd end;
  PartTimes& parts = end.parts;
  const model::StageParameters held = rank_parameters(job_, contents_, rank);
  double forward_us = 0;
  double backward_us = 0;
  for (const int stage : shape_.stages_of(rank)) {
    // Of the first micro-batch and of the last.
    forward_us += sum(pipelines_.passes(slowest, {0, stage}).forward);
    const Passes& last_passes = pipelines_.passes(slowest, {shape_.micro_batches - 1, stage});
    backward_us += sum(last_passes.input_gradient) + sum(last_passes.weight_gradient);
  }
  const model::StateRules& states = job_.states;
  const bool reduces_all = states.zero == 0;
  // Shared gradients are reduced in every micro-batch.
  end.reductions = states.zero >= 2 ? micro_batches_of_stage() : 1;
  const Wanted gradients = {Part::gradients,
                            reduces_all ? Collective::all_reduce : Collective::reduce_scatter, held,
                            model::reduced_bytes(held, states)};
  if (states.zero < 3) {
    parts[at(Part::gradients)] +=
        end.reductions * exposed_us(gradients, backward_us, job_.overlaps_gradients, end);
  }
  // With ZeRO 3 the exchanges under a pass lie inside an instance, on other links.
  double hidden_us = hidden_share * backward_us;
  for (const BucketExchange& each : end.exchanges) hidden_us -= each.buckets * each.each_us;
  parts[at(Part::gradients)] +=
      across_instances_us(held, std::max(0.0, hidden_us)) + copies_us(held);
  if (states.zero == 1 || states.zero == 2) {
    const Wanted gathered = {Part::parameters, Collective::all_gather, held,
                             model::gathered_bytes(held, states)};
    parts[at(Part::parameters)] += exposed_us(gathered, forward_us, job_.overlaps_parameters, end);
  }
  const model::ShardSizes shards = job_.shards();
  const double bytes = model::optimizer_bytes(held, shards, states);
  parts[at(Part::optimizer)] += prices_.memory_us(bytes, MemoryKernel::streaming);
  parts[at(Part::host)] += job_.host.step_us;
  return end;
}

// A buffer of fixed size is kept whole.
bool Step::holds_drawn_rows() const {
  return pipelines_.loads() != nullptr && job_.routing->rank_capacity <= 0;
}

// Rows of the fullest rank of a layer over balance: with drawn routing, in 99 % of layers and
// micro-batches.
double Step::layer_load() const {
  if (job_.routing && job_.routing->rank_capacity > 0) return rank_capacity_load(job_);
  if (pipelines_.loads() != nullptr) return pipelines_.loads()->figures().p99_load;
  return job_.capacity_factor > 0 ? job_.capacity_factor : prices_.imbalance();
}

std::vector<model::StageMemory> Step::memory() const {
  std::vector<parallel::PipelineChunk> chunks;
  for (const Stage& stage : pipelines_.stages()) chunks.push_back(stage.chunk);
  const double layer = layer_load();
  HeldLoads loads{{}, layer};
  for (int rank = 0; rank < shape_.ranks; ++rank) {
    loads.of_ranks.push_back(holds_drawn_rows() ? drawn_load_of(rank) : layer);
  }
  return rank_memory(job_, pipelines_.schedule(), chunks, loads);
}

// Of all MoE layers that a pipeline rank holds.
double Step::drawn_load_of(int rank) const {
  std::vector<int> layers;
  for (const int stage : shape_.stages_of(rank)) {
    const Stage& there = pipelines_.stages()[at(stage)];
    for (const std::vector<int>& some : {there.layers, there.predictions}) {
      std::copy_if(some.begin(), some.end(), std::back_inserter(layers),
                   [](int layer) { return layer != dense_layer; });
    }
  }
  return pipelines_.loads()->held_load(layers);
}

TrainingStep Step::run() {
  const PipelineRun slowest = pipelines_.slowest();
  TrainingStep step;
  step.bubble_share = slowest.run.bubble_share();
  step.imbalance = prices_.imbalance();
  if (pipelines_.loads() != nullptr) {
    step.routing = pipelines_.loads()->figures();
    step.imbalance = step.routing->mean_load;
  }
  step.micro_batches = shape_.micro_batches;
  const auto busier = [](const parallel::RankRun& one, const parallel::RankRun& other) {
    return one.busy < other.busy;
  };
  const std::vector<parallel::RankRun>& ranks = slowest.run.ranks;
  const auto busiest = std::max_element(ranks.begin(), ranks.end(), busier);
  step.busiest_rank = static_cast<int>(busiest - ranks.begin());
  step.parts = rank_parts(step.busiest_rank, slowest);
  // All ranks wait for the slowest at the gradient norm and at the end.
  PartTimes end{};
  for (int rank = 0; rank < shape_.ranks; ++rank) {
    step.ends.push_back(end_of_step(rank, slowest));
    if (sum(step.ends.back().parts) > sum(end)) end = step.ends.back().parts;
  }
  for (std::size_t part = 0; part < end.size(); ++part) step.parts[part] += end[part];
  step.step_us = sum(step.parts);
  step.memory = memory();
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

// Random logits; with padded blocks of the same capacity.
TrainingJob balanced(const TrainingJob& job, const TrainingStep& step) {
  TrainingJob forced = with_forced_balance(job);
  if (job.routing->router.pads_exchange()) {
    const double balance = job.experts_per_token() * job.tokens_per_rank();
    forced.capacity_factor =
        static_cast<double>(step.routing->capacity * job.model->moe->experts) / balance;
  }
  return forced;
}

// Steps that overflow more seldom than that do not count in the memory.
constexpr double rarest_overflow = 1e-6;

// E[step] = static step + P(overflow) (dropless step + capture); memory that is enough for both.
void add_reruns(const TrainingJob& job, std::shared_ptr<const DrawnLoads> loads,
                TrainingStep& step) {
  TrainingJob dropless = job;
  dropless.routing->rank_capacity = 0;
  if (job.graphs == Graphs::layers) dropless.graphs = Graphs::none;
  Step again(dropless, std::move(loads));
  const RankRowsLaw law(job);
  RankCapacityFigures figures;
  figures.rows = rank_capacity_rows(job);
  figures.load = rank_capacity_load(job);
  figures.overflow_chance = law.overflow_chance(figures.rows);
  figures.load_for_one_percent = figures.load * law.rows_for(0.01) / figures.rows;
  figures.static_step_us = step.step_us;
  if (job.graphs == Graphs::layers) figures.capture_us = again.launches_us();
  const TrainingStep rerun = again.run();
  figures.rerun_us = rerun.step_us + figures.capture_us;
  if (figures.overflow_chance > rarest_overflow) {
    for (std::size_t rank = 0; rank < step.memory.size(); ++rank) {
      if (rerun.memory[rank].total() > step.memory[rank].total()) {
        step.memory[rank] = rerun.memory[rank];
      }
    }
  }
  step.parts[at(Part::reruns)] = figures.overflow_chance * figures.rerun_us;
  step.step_us += step.parts[at(Part::reruns)];
  const double slower = figures.static_step_us / step.step_us;
  step.tokens_per_second_per_gpu *= slower;
  step.tflops_per_gpu *= slower;
  step.mfu *= slower;
  step.rank_capacity = figures;
}

}  // namespace

Bytes TrainingStep::peak_memory() const {
  Bytes most;
  for (const model::StageMemory& each : memory) most = std::max(most, each.total());
  return most;
}

TrainingStep training_step(const TrainingJob& job, std::shared_ptr<const DrawnLoads> loads,
                           bool with_forced_step) {
  check_job(job);
  if (!job.routing) return Step(job).run();
  if (!loads) loads = std::make_shared<const DrawnLoads>(job);
  TrainingStep step = Step(job, loads).run();
  if (with_forced_step) {
    const TrainingStep forced = Step(balanced(job, step)).run();
    step.balanced_step_us = forced.step_us;
    step.balanced_parts = forced.parts;
  }
  if (job.routing->rank_capacity > 0) add_reruns(job, std::move(loads), step);
  return step;
}

}  // namespace moesim::training
