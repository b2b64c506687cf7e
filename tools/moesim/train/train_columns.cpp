#include "tools/moesim/train/train_columns.hpp"

namespace moesim::tool {

const std::vector<TrainColumn>& train_columns() {
  static const std::vector<TrainColumn> columns = {
      {"data_parallel", "", "ranks that hold the same dense weights"},
      {"micro_batches", "", "of a step, per data-parallel rank"},
      {"tokens", "", "of a step, all ranks together"},
      {"step_ms", "ms",
       "one step as predicted: for ratios; step_ms_likely is what a measurement is expected to "
       "say"},
      {"tokens_per_s_per_gpu", "tokens/s", "tokens over step_ms and GPUs"},
      {"tflops_per_gpu", "TFLOP/s",
       "FLOPs of the model by Megatron's formula over step_ms and GPUs"},
      {"mfu", "share", "tflops_per_gpu over the GPU's dense peak in bf16"},
      {"gpu_hours_per_1e12_tokens", "hours", "by step_ms"},
      {"bubble_share", "share",
       "time in which pipeline ranks have nothing to compute, of their step"},
      {"imbalance", "",
       "rows of the busiest rank over those of balance, mean over layers and micro-batches"},
      {"memory_gib", "GiB", "peak of the fullest rank"},
      {"memory_gib_by_rank", "", "peak of each pipeline rank, with ; between"},
      {"fits_memory", "",
       "whether memory_gib is no more than the GPU has, or than memory_limit_gib"},
      {"warnings", "", "what limits the step, with ; between"},
      {"offloaded_gib", "GiB", "activations that wait in the host's memory, of the fullest rank"},
      {"host_times_given", "", "which times of the host were typed, not assumed"},
      {"capacity", "slots", "C: rows that an expert takes from one source"},
      {"recorded_steps", "", "steps in the trace of routing"},
      {"taken_steps", "", "steps of it that the micro-batches take"},
      {"failed", "share", nullptr},
      {"partial", "share", nullptr},
      {"lost_mass", "share", nullptr},
      {"unrouted", "share", nullptr},
      {"residual_loss", "share", nullptr},
      {"counted_loss", "share",
       "the loss that --max-loss limits: 0 of a router without capacity that is the model's own"},
      {"padded", "share", nullptr},
      {"load_p99", "",
       "rows of a rank over those of balance that 1 % of ranks, layers and micro-batches exceed"},
      {"load_max", "", "rows of the fullest rank over those of balance"},
      {"expert_load_mean", "",
       "rows of the busiest expert over those of balance, mean over layers"},
      {"balanced_step_ms", "ms", "the same step under forced balance"},
      {"rank_capacity_rows", "", "rows of the buffer of a rank, of a layer and micro-batch"},
      {"overflow_chance", "share", "chance that a step exceeds that somewhere and is run again"},
      {"rank_capacity_for_one_percent", "", "the --rank-capacity whose chance of that is 1 %"},
      {"rerun_step_ms", "ms",
       "what running a step again adds to it, graphs captured anew included"},
      {"mfu_kept", "share", nullptr},
      {"residual_loss_p05", "share",
       "with residual_loss_p95: holds the residual_loss of one further step of the same routing "
       "with 90 % chance, by four to nineteen drawn steps, of a trace by its steps; blank of a "
       "trace drawn per micro-batch or of one step, and of the model's own router without a "
       "capacity"},
      {"residual_loss_p95", "share", "see residual_loss_p05"},
      {"residual_loss_error", "share",
       "standard error of residual_loss, which is of one step, or the mean of a trace's, for the "
       "mean over many; blank as residual_loss_p05"},
      // What simulate and sweep add to steps with a layout.
      {"bubble_ms", "ms", "a pipeline rank waits for others, or sends to them"},
      // What recommend adds.
      {"memory_limit_gib", "GiB", "what a step may take: --memory-share of the GPU"},
      {"drawn_memory_gib", "GiB", "memory_gib with routing drawn instead of forced balance"},
      // Options.
      {"launch_us", "us", "host time of a launch"},
      {"host_read_us", "us", "time until the host has read a count"},
      {"step_overhead_ms", "ms", "host time of a step beside launches"},
  };
  return columns;
}

}  // namespace moesim::tool
