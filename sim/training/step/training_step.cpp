#include "sim/training/step/training_step.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <map>
#include <utility>

#include "sim/base/numbers.hpp"
#include "sim/training/job/job_ranges.hpp"
#include "sim/training/step/job_rules.hpp"
#include "sim/training/step/pair_spans.hpp"
#include "sim/training/step/pipelines.hpp"
#include "sim/training/step/step_memory.hpp"

namespace moesim::training {
namespace {

// Of a token that `choices` experts process in each MoE layer.
model::ModelFlops flops_of(const TrainingJob& job, double choices) {
  return model::model_flops(*job.model, static_cast<double>(job.layout.sequence_length), choices,
                            parallel::stages_of(*job.model, job.layout).mtp());
}

class Step {
 public:
  explicit Step(const TrainingJob& job, std::shared_ptr<const DrawnLoads> loads = nullptr)
      : job_(job),
        pipelines_(job, std::move(loads)),
        prices_(pipelines_.prices()),
        shape_(pipelines_.shape()) {}

  TrainingStep run();
  PartTimes mean_parts();
  // What the host takes to launch every layer of a rank once, of the rank that takes longest.
  double launches_us() const;

 private:
  PartTimes alone_parts(int rank, const PipelineRun& slowest) const;
  PartTimes paired_parts(int rank, const PipelineRun& slowest);
  PartTimes rank_parts(int rank, const PipelineRun& slowest);
  PartTimes parts_to_the_end(int rank, const PipelineRun& slowest,
                             const std::vector<RankEnd>& ends);
  std::vector<RankEnd> rank_ends(const PipelineRun& slowest) const;
  // A step of DrawnLoads::steps(), or the only one.
  struct OneStep {
    PipelineRun slowest;
    std::vector<RankEnd> ends;
  };
  std::vector<OneStep> all_steps();
  // The rank that computes longest in all of them together.
  static int busiest_rank(const std::vector<OneStep>& steps);
  void set_times(const std::vector<OneStep>& steps, TrainingStep& step);

  const TrainingJob& job_;
  Pipelines pipelines_;
  const LayerPrices& prices_;
  const parallel::ScheduleShape& shape_;
};

// Parts of passes that run one after another.
PartTimes Step::alone_parts(int rank, const PipelineRun& slowest) const {
  PartTimes parts{};
  const auto add = [&](const Passes& passes, double times) {
    for (std::size_t part = 0; part < parts.size(); ++part) {
      parts[part] += times * passes.all_of(part);
    }
  };
  const bool all_alike = slowest.passes.size() == static_cast<std::size_t>(shape_.stages());
  for (const int stage : shape_.stages_of(rank)) {
    if (all_alike) {
      add(pipelines_.passes(slowest, {0, stage}), pipelines_.micro_batches_of_stage());
      continue;
    }
    for (int micro = 0; micro < shape_.micro_batches; ++micro) {
      if (shape_.rank_of(stage, micro) != rank) continue;
      add(pipelines_.passes(slowest, {micro, stage}), 1);
    }
  }
  return parts;
}

// Where pairs run beside each other: of these what is exposed, of other passes all.
PartTimes Step::paired_parts(int rank, const PipelineRun& slowest) {
  PartTimes parts{};
  const bool all_alike = slowest.passes.size() == static_cast<std::size_t>(shape_.stages());
  std::map<std::pair<int, int>, PartTimes> pairs;  // by stages
  for (const parallel::PipelineOperation& operation : pipelines_.schedule().ranks[index_of(rank)]) {
    if (operation.kind == parallel::OperationKind::forward_backward) {
      const auto [pair, fresh] = pairs.try_emplace({operation.pass.stage, operation.paired.stage});
      if (fresh || !all_alike) {
        pair->second =
            exposed_parts(pair_spans(pipelines_, slowest, operation.pass, operation.paired));
      }
      add(parts, pair->second);
      continue;
    }
    const Passes& passes = pipelines_.passes(slowest, operation.pass);
    if (operation.is_forward()) add(parts, passes.forward);
    if (operation.is_backward()) add(parts, passes.input_gradient);
    if (operation.has_weight_gradient()) add(parts, passes.weight_gradient);
  }
  return parts;
}

// What the rank computes, all micro-batches; the rest of the makespan it waits.
PartTimes Step::rank_parts(int rank, const PipelineRun& slowest) {
  PartTimes parts =
      pipelines_.hides_exchanges() ? paired_parts(rank, slowest) : alone_parts(rank, slowest);
  const parallel::RankRun& run = slowest.run.ranks[index_of(rank)];
  const Picoseconds makespan = slowest.run.makespan;
  // Sums of whole picoseconds and of fractions differ by rounding.
  const double beyond = std::max(0.0, sum(parts) - run.busy.us());
  assert(beyond <= 1e-6 * makespan.us());
  for (const TrainingPart part : {TrainingPart::dispatch, TrainingPart::host}) {
    if (parts[at(part)] < beyond) continue;
    parts[at(part)] -= beyond;
    break;
  }
  const double waiting = makespan.us() - sum(parts);
  parts[at(TrainingPart::p2p)] = waiting > 1e-9 * makespan.us() ? waiting : 0;
  return parts;
}

std::vector<RankEnd> Step::rank_ends(const PipelineRun& slowest) const {
  StepEnds ends(job_, pipelines_, slowest);
  std::vector<RankEnd> found;
  for (int rank = 0; rank < shape_.ranks; ++rank) found.push_back(ends.of(rank));
  return found;
}

// Those of a rank with the end of the step.
PartTimes Step::parts_to_the_end(int rank, const PipelineRun& slowest,
                                 const std::vector<RankEnd>& ends) {
  PartTimes parts = rank_parts(rank, slowest);
  PartTimes end = joint_end(slowest.run, ends);
  // The rank reduces for as long while it would wait for others.
  const double own_us = ends[index_of(rank)].parts[at(TrainingPart::gradients)];
  const double earlier_us =
      std::clamp(own_us - end[at(TrainingPart::gradients)], 0.0, parts[at(TrainingPart::p2p)]);
  end[at(TrainingPart::gradients)] += earlier_us;
  end[at(TrainingPart::p2p)] -= earlier_us;
  add(parts, end);
  return parts;
}

std::vector<Step::OneStep> Step::all_steps() {
  const int count = pipelines_.loads() == nullptr ? 1 : pipelines_.loads()->steps();
  std::vector<OneStep> steps;
  for (int step = 0; step < count; ++step) {
    PipelineRun slowest = pipelines_.slowest(step);
    std::vector<RankEnd> ends = rank_ends(slowest);
    steps.push_back({std::move(slowest), std::move(ends)});
  }
  return steps;
}

int Step::busiest_rank(const std::vector<OneStep>& steps) {
  std::vector<Picoseconds> busy(steps.front().slowest.run.ranks.size());
  for (const OneStep& step : steps) {
    for (std::size_t rank = 0; rank < busy.size(); ++rank) {
      busy[rank] += step.slowest.run.ranks[rank].busy;
    }
  }
  return static_cast<int>(std::max_element(busy.begin(), busy.end()) - busy.begin());
}

void Step::set_times(const std::vector<OneStep>& steps, TrainingStep& step) {
  const auto count = static_cast<double>(steps.size());
  std::vector<double> times;
  step.busiest_rank = busiest_rank(steps);
  for (const OneStep& one : steps) {
    step.bubble_share += one.slowest.run.bubble_share() / count;
    const PartTimes parts = parts_to_the_end(step.busiest_rank, one.slowest, one.ends);
    for (std::size_t part = 0; part < parts.size(); ++part) step.parts[part] += parts[part] / count;
    times.push_back(sum(parts));
  }
  step.step_us = sum(step.parts);
  const auto nearest = std::min_element(times.begin(), times.end(), [&](double one, double other) {
    return std::abs(one - step.step_us) < std::abs(other - step.step_us);
  });
  step.shown_step = static_cast<int>(nearest - times.begin());
  if (steps.size() > 1) step.shown_step_us = *nearest;
  step.ends = steps[index_of(step.shown_step)].ends;
}

PartTimes Step::mean_parts() {
  const std::vector<OneStep> steps = all_steps();
  const double count = static_cast<double>(steps.size()) * shape_.ranks;
  PartTimes mean{};
  for (const OneStep& step : steps) {
    for (int rank = 0; rank < shape_.ranks; ++rank) {
      const PartTimes parts = parts_to_the_end(rank, step.slowest, step.ends);
      for (std::size_t part = 0; part < mean.size(); ++part) mean[part] += parts[part] / count;
    }
  }
  return mean;
}

double Step::launches_us() const {
  double most = 0;
  for (int rank = 0; rank < shape_.ranks; ++rank) {
    double launches = 0;
    for (const int number : shape_.stages_of(rank)) {
      const Stage& stage = pipelines_.stages()[index_of(number)];
      std::size_t place = 0;
      for (const std::vector<int>& layers : {stage.layers, stage.predictions}) {
        for (const int layer : layers) {
          launches +=
              prices_.host_us(layer != dense_layer, pipelines_.attention_at(stage, place++));
        }
      }
    }
    most = std::max(most, launches);
  }
  return most;
}

TrainingStep Step::run() {
  TrainingStep step;
  set_times(all_steps(), step);
  step.imbalance = prices_.imbalance();
  if (pipelines_.loads() != nullptr) {
    step.routing = pipelines_.loads()->figures();
    step.imbalance = step.routing->mean_load;
  }
  step.micro_batches = shape_.micro_batches;
  step.memory = step_memory(job_, pipelines_);
  const parallel::ParallelLayout& sizes = job_.layout.sizes;
  step.tokens = static_cast<double>(job_.layout.micro_batch * job_.layout.sequence_length) *
                shape_.micro_batches * sizes.data();
  step.flops = flops_of(job_, job_.experts_per_token());
  step.tokens_per_second_per_gpu = step.tokens / step.step_us * 1e6 / sizes.gpus;
  step.tflops_per_gpu = step.tokens_per_second_per_gpu * step.flops.total * 1e-12;
  step.mfu = step.tflops_per_gpu * 1e12 / job_.profile->device().peak_bf16_flops;
  return step;
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
  step.parts[at(TrainingPart::reruns)] = figures.overflow_chance * figures.rerun_us;
  step.step_us += step.parts[at(TrainingPart::reruns)];
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

double TrainingStep::gpu_hours_per_1e12_tokens() const {
  return 1e12 / tokens_per_second_per_gpu / 3600;
}

TrainingStep training_step(const TrainingJob& job, std::shared_ptr<const DrawnLoads> loads,
                           bool with_forced_step) {
  check_documents(job);
  check_decoder(job);
  check_job(job);
  if (!job.routing) return Step(job).run();
  if (!loads) loads = std::make_shared<const DrawnLoads>(job);
  TrainingStep step = Step(job, loads).run();
  if (with_forced_step) add_forced_step(job, step);
  if (job.routing->rank_capacity > 0) add_reruns(job, std::move(loads), step);
  return step;
}

// Random logits. Drawn where a router has slots, keeps groups or leaves out exchanges: how long the
// longest block of a group is, what capacity keeps and what is rectified has no simpler law.
TrainingJob forced_balance_job(const TrainingJob& job) {
  const routing::RouterConfig& router = job.routing->router;
  const bool alike = ignores_draws(job);
  const bool has_slots = router.has_capacity() || router.pads_exchange();
  const bool has_groups = router.kept_groups < router.groups;
  if (!alike && (has_slots || has_groups || router.kind->skips_exchange)) {
    return with_random_logits(job);
  }
  TrainingJob forced = with_forced_balance(job);
  if (alike) forced.capacity_factor = capacity_load(job);
  return forced;
}

void add_forced_step(const TrainingJob& job, TrainingStep& step,
                     std::shared_ptr<const DrawnLoads> loads) {
  const TrainingStep forced = Step(forced_balance_job(job), std::move(loads)).run();
  step.balanced_step_us = forced.step_us;
  step.balanced_parts = forced.parts;
}

std::optional<double> mfu_kept(const TrainingJob& job, const TrainingStep& step) {
  if (!step.routing) return std::nullopt;
  constexpr double least = 1e-9;  // none would stand for the dense model
  const double kept = std::max(job.experts_per_token() * (1 - step.routing->loss.failed), least);
  return step.mfu * flops_of(job, kept).total / step.flops.total;
}

double host_gain_us(const TrainingJob& job, double reach, std::shared_ptr<const DrawnLoads> loads) {
  if (job.routing && !loads) loads = std::make_shared<const DrawnLoads>(job, false);
  const auto step_us = [&](double log_factor) {
    TrainingJob moved = job;
    moved.host.factor *= std::exp(log_factor);
    return training_step(moved, loads, false).step_us;
  };
  return (step_us(reach) - step_us(-reach)) / (2 * reach);
}

HostMoves host_moves(const TrainingJob& job, const TrainingStep& step,
                     std::shared_ptr<const DrawnLoads> loads) {
  if (!job.host.assumes_launch && !job.host.assumes_read) return {};
  if (job.routing && !loads) loads = std::make_shared<const DrawnLoads>(job, false);
  const auto moved = [&](double factor) {
    TrainingJob other = job;
    if (job.host.assumes_launch) other.host.launch_us *= factor;
    if (job.host.assumes_read) other.host.sync_us *= factor;
    return std::log(training_step(other, loads, false).step_us / step.step_us);
  };
  return {std::max(0.0, moved(2)), std::max(0.0, -moved(0.5))};
}

void add_host_moves(const TrainingJob& job, TrainingStep& step,
                    std::shared_ptr<const DrawnLoads> loads) {
  if (!step.host_moves) step.host_moves = host_moves(job, step, std::move(loads));
}

void add_hidden_parts(const TrainingJob& job, TrainingStep& step,
                      std::shared_ptr<const DrawnLoads> loads) {
  if (job.states.zero < 2 || step.hidden_parts) return;
  TrainingJob hidden = job;
  hidden.hidden_share = 1;
  step.hidden_parts = training_step(hidden, std::move(loads), false).parts;
}

double hidden_gain(const TrainingStep& step) {
  if (!step.hidden_parts) return 0;
  return std::max(0.0, std::log(step.step_us / sum(*step.hidden_parts)));
}

PartTimes mean_parts(const TrainingJob& job, const TrainingStep& step,
                     std::shared_ptr<const DrawnLoads> loads) {
  if (job.routing && !loads) loads = std::make_shared<const DrawnLoads>(job);
  PartTimes mean = Step(job, std::move(loads)).mean_parts();
  mean[at(TrainingPart::reruns)] = step.parts[at(TrainingPart::reruns)];
  return mean;
}

}  // namespace moesim::training
