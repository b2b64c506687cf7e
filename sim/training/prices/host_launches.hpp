#pragma once

#include "sim/training/job/training_job.hpp"

namespace moesim::training {

// Kernels that the host launches for one layer. The backward pass launches twice as many as the
// forward pass, and what is recomputed.
struct HostLaunches {
  double before = 0;   // of forward: before the host reads how many rows come
  double forward = 0;  // all of them
  double recomputed = 0;
  // Of the backward pass, those of weight gradients: one for each product that LayerKernels prices,
  // its sum added to the gradients so far.
  double weight_gradient = 0;

  double backward() const;  // all of them
};
inline constexpr double backward_launches = 2;  // of each one forward: assumed

HostLaunches host_launches(const TrainingJob& job, bool is_moe,
                           model::AttentionKind attention = model::AttentionKind::softmax);

// Microseconds that the GPU waits for the host in one pass of a layer whose kernels take
// `before_us` until the host reads the rows that came and `after_us` then.
double forward_wait_us(const TrainingJob& job, bool is_moe, double before_us, double after_us,
                       model::AttentionKind attention = model::AttentionKind::softmax);

// The same of a backward pass, apart for its input and its weight gradients. Where a schedule
// computes all of them in two operations (parallel::splits_backward()), each waits for its own
// launches. Where both are one operation, the kernels of one run while those of the other are
// launched: the wait of both together counts to input gradients, under DualPipe, which has either
// kind of operation, to both by what each alone would wait.
struct BackwardTimes {
  double input_gradient_us = 0;
  double weight_gradient_us = 0;
};
BackwardTimes backward_wait_us(const TrainingJob& job, bool is_moe, const BackwardTimes& kernels,
                               model::AttentionKind attention = model::AttentionKind::softmax);

}  // namespace moesim::training
