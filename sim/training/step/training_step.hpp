#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "sim/model/training_work.hpp"
#include "sim/parallel/schedule_run.hpp"
#include "sim/training/drawn/drawn_loads.hpp"
#include "sim/training/drawn/rank_capacity.hpp"
#include "sim/training/prices/layer_prices.hpp"
#include "sim/training/step/step_end.hpp"

namespace moesim::training {

// What the log of a step's time gains where the host's launches and reads take twice as long, and
// what it loses where they take half; 0 or more. Times that were given (HostCosts::assumes_launch,
// assumes_read) do not move.
struct HostMoves {
  double slower = 0;
  double faster = 0;
};

// One optimizer step; of several recorded steps (DrawnLoads::steps()) the mean.
struct TrainingStep {
  double step_us = 0;
  // Parts of the pipeline rank that computes longest, and of the end of the step, joint_end(); they
  // add up to the step. Exchanges of experts that run beside compute (expert_overlap) count as far
  // as they make it longer.
  PartTimes parts{};
  int busiest_rank = 0;
  double bubble_share = 0;  // idle time of all ranks of a pipeline over its makespan
  double imbalance = 1;     // rows of the busiest rank over balance; drawn: mean of all layers
  // With drawn routing: what it lost, and the step with forced balance (random logits, under the
  // same router): its time and parts.
  std::optional<RoutingFigures> routing;
  double balanced_step_us = 0;
  PartTimes balanced_parts{};
  // The parts of the step if all computing beside exchanges of gradients and weights hid them,
  // where add_hidden_parts() was asked for it.
  std::optional<PartTimes> hidden_parts;
  // With a capacity per rank; the step is the expected one, reruns included.
  std::optional<RankCapacityFigures> rank_capacity;
  int micro_batches = 1;
  double tokens = 0;        // of the step, all GPUs
  model::ModelFlops flops;  // per token
  double tokens_per_second_per_gpu = 0;
  double tflops_per_gpu = 0;               // model FLOPs
  double mfu = 0;                          // of the GPU's dense bf16 peak
  std::vector<model::StageMemory> memory;  // of each pipeline rank
  // What the step gains for each unit of the log of the host's times, where that was asked for.
  std::optional<double> host_gain_us;
  std::optional<HostMoves> host_moves;  // where add_host_moves() was asked for them
  int shown_step = 0;         // of several recorded steps the one whose time is nearest to the mean
  double shown_step_us = 0;   // its time; 0: the step is no mean
  std::vector<RankEnd> ends;  // of that step, of each pipeline rank

  Bytes peak_memory() const;
  double gpu_hours_per_1e12_tokens() const;
};

// As the curves of the profile have it: without what one's own software makes of it, and without a
// band. study::predict_training() is what `moesim train` answers.
// Throws UsageError as check_job() for what cannot be, and as DrawnLoads for routing that training
// cannot draw; Error for curves that the profile does not have.
// `loads`: those of the job's routing and drawn_shape(), drawn before; null: drawn here.
// `with_forced_step`: the step with forced balance is wanted too.
TrainingStep training_step(const TrainingJob& job,
                           std::shared_ptr<const DrawnLoads> loads = nullptr,
                           bool with_forced_step = true);

// The job of the step with forced balance beside that of a job with drawn routing. Precondition:
// job.routing.
TrainingJob forced_balance_job(const TrainingJob& job);
// Sets that step's time and parts in a step that was asked for without it. `loads`: those of
// forced_balance_job(), as in training_step(). `step`: of the job. Precondition: job.routing.
void add_forced_step(const TrainingJob& job, TrainingStep& step,
                     std::shared_ptr<const DrawnLoads> loads = nullptr);

// TrainingStep::mfu with the FLOPs of those routes alone that were kept, of all k: without `failed`
// of TokenLoss, so before rectification. None with forced balance. `step`: of the job.
std::optional<double> mfu_kept(const TrainingJob& job, const TrainingStep& step);

// host_gain_us of the step of a job: from both sides, `reach` away in the log. A wait that begins
// within that counts in part. `loads` as in training_step().
double host_gain_us(const TrainingJob& job, double reach,
                    std::shared_ptr<const DrawnLoads> loads = nullptr);

// host_moves of the step of a job, which is priced twice more. `loads` as in training_step().
HostMoves host_moves(const TrainingJob& job, const TrainingStep& step,
                     std::shared_ptr<const DrawnLoads> loads = nullptr);
// Sets them, so that nobody who asks for them later draws the loads of the step again.
void add_host_moves(const TrainingJob& job, TrainingStep& step,
                    std::shared_ptr<const DrawnLoads> loads = nullptr);

// Sets hidden_parts of a step whose replicas share gradients or weights in every micro-batch (ZeRO
// 2, 3) and that has none yet: it is priced again with hidden_share 1. Exchanges on the same links
// still hide nothing, nor does computing what was not to be overlapped. No public step tells what
// software hides of these exchanges. `loads` as in training_step(); `step`: of the job.
void add_hidden_parts(const TrainingJob& job, TrainingStep& step,
                      std::shared_ptr<const DrawnLoads> loads = nullptr);
// How much less the log of the step's time is with hidden_parts; 0 without these.
double hidden_gain(const TrainingStep& step);

// The parts of the same step as the mean of its pipeline ranks, whose waiting is in p2p; they add
// up to the step, too. For steps that are compared: the rank that computes longest has the output
// head in one layout and not in another. `step`: of the job; `loads` as in training_step().
PartTimes mean_parts(const TrainingJob& job, const TrainingStep& step,
                     std::shared_ptr<const DrawnLoads> loads = nullptr);

}  // namespace moesim::training
