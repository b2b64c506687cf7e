#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "sim/study/explain/exposed_time.hpp"

namespace moesim::study {

// A GPU whose kernels take longer than those of the other GPUs of a step.
struct SlowGpu {
  std::size_t index = 0;  // among the GPUs that were compared
  double factor = 1;      // its time over the median of the others, of work that is alike on all
  // The same of each kind of kernel: its own factor where the work is alike on all GPUs and slower,
  // `factor` where it depends on routing (experts, rows that move), 1 for exchanges.
  std::array<double, kernel_kind_count> of_kind{};

  // The step of this GPU as if it were as fast as the others.
  ExposedTime at_speed_of_others(const ExposedTime& time) const;
};

// GPUs that compute slower than the others, the slowest first. Compared are kinds of kernels whose
// work is alike on all GPUs, whatever the routing: attention, dense FFN, router, optimizer, others.
// One is slow if
//   - of these it takes longer than two runs of one GPU may differ (run_noise, p95) and than three
//     deviations of the others (1.4826 times their median absolute deviation from the median),
//   - parts that make up 80 % of this time are each slower by half of the log of the factor,
//   - what it takes longer is 1 % of the step.
// None where stages of a pipeline have different work, and of one GPU.
std::vector<SlowGpu> slow_gpus(const std::vector<ExposedTime>& gpus);

}  // namespace moesim::study
