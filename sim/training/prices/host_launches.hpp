#pragma once

#include "sim/training/job/training_job.hpp"

namespace moesim::training {

// Kernels that the host launches for the forward pass of one layer; the backward pass launches
// twice as many.
struct HostLaunches {
  double before = 0;   // of forward: before the host reads how many rows come
  double forward = 0;  // all of them
  double again = 0;    // recomputed
};
inline constexpr double backward_launches = 2;  // of each one forward: assumed

HostLaunches host_launches(const TrainingJob& job, bool is_moe,
                           model::AttentionKind attention = model::AttentionKind::softmax);

// Microseconds that the GPU waits for the host in one pass of a layer whose kernels take
// `before_us` until the host reads the rows that came and `after_us` then.
double forward_wait_us(const TrainingJob& job, bool is_moe, double before_us, double after_us,
                       model::AttentionKind attention = model::AttentionKind::softmax);
double backward_wait_us(const TrainingJob& job, bool is_moe, double kernels_us,
                        model::AttentionKind attention = model::AttentionKind::softmax);

}  // namespace moesim::training
