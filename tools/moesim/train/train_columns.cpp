#include "tools/moesim/train/train_columns.hpp"

namespace moesim::tool {

const std::vector<TrainColumn>& train_columns() {
  static const std::vector<TrainColumn> columns = {
      {"data_parallel", ""},
      {"micro_batches", ""},
      {"tokens", ""},
      {"step_ms", "ms"},
      {"tokens_per_s_per_gpu", "tokens/s"},
      {"tflops_per_gpu", "TFLOP/s"},
      {"mfu", "share"},
      {"gpu_hours_per_1e12_tokens", "hours"},
      {"bubble_share", "share"},
      {"imbalance", ""},
      {"memory_gib", "GiB"},
      {"memory_gib_by_rank", ""},
      {"fits_memory", ""},
      {"warnings", ""},
      {"offloaded_gib", "GiB"},
      {"host_times_given", ""},
      {"capacity", "slots"},
      {"recorded_steps", ""},
      {"taken_steps", ""},
      {"failed", "share"},
      {"partial", "share"},
      {"lost_mass", "share"},
      {"unrouted", "share"},
      {"residual_loss", "share"},
      {"counted_loss", "share"},
      {"padded", "share"},
      {"load_p99", ""},
      {"load_max", ""},
      {"expert_load_mean", ""},
      {"balanced_step_ms", "ms"},
      {"rank_capacity_rows", ""},
      {"overflow_chance", "share"},
      {"rank_capacity_for_one_percent", ""},
      {"rerun_step_ms", "ms"},
      // What recommend adds.
      {"memory_limit_gib", "GiB"},
      {"drawn_memory_gib", "GiB"},
      // Options.
      {"launch_us", "us"},
      {"host_read_us", "us"},
      {"step_overhead_ms", "ms"},
  };
  return columns;
}

}  // namespace moesim::tool
