#pragma once

#include <cstdint>
#include <string>

#include "sim/training/job/training_job.hpp"

namespace moesim::training {

// What a kernel of a training library takes on one GPU of a job: the profile's curves, which are of
// lone kernels of inference libraries, corrected for what is known of training. Every constant
// stands in kernel_prices.cpp with its source; README.md of this room lists them.
class KernelPrices {
 public:
  // Throws Error for a precision that the profile has no curve of.
  explicit KernelPrices(const TrainingJob& job);

  // A memory-bound kernel that reads and writes `bytes`; 0 bytes: 0 us.
  double memory_us(double bytes, profile::MemoryKernel kind) const;
  // A tensor operation of PyTorch, one element at a time: as fast as the curve. The additions of
  // public operator profiles (microsoft/vidur) run at 0.97 of H100's peak and 0.88 of A100's.
  double elementwise_us(double bytes) const;

  // C[m, n] = A[m, k] B[k, n] for each of `copies` weights of one shape, `m` rows over all of them.
  // A, B in the GEMM format of the job, or in bf16 where `is_wide`. A product by weight, whose sum
  // runs over the rows, reads no weights.
  struct Product {
    std::int64_t m = 1;
    std::int64_t n = 1;
    std::int64_t k = 1;
    double copies = 1;
    bool is_wide = false;
    bool by_weight = false;
  };
  double product_us(const Product& product) const;

  // Core attention of a micro-batch on one tensor and context rank, causal, windows on average over
  // the model's layers.
  double core_attention_us(bool backward) const;

  // Rows gathered into the experts' order, or summed back into the tokens'.
  // `home`: tokens that the outputs are added up for, where these are others.
  double rows_moved_us(double tokens, double rows, double home) const;
  double rows_moved_us(double tokens, double rows) const {
    return rows_moved_us(tokens, rows, tokens);
  }

 private:
  double dense_product_us(const Product& product) const;

  const TrainingJob& job_;
  const profile::Profile& products_;  // whose curves price products, and attention where faster
  std::string type_;                  // of the GEMM format, as curves are named
  double window_share_ = 1;
};

}  // namespace moesim::training
