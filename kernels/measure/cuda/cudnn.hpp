#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/measure/cuda/device_kernels.hpp"
#include "sim/profile/attention_curve.hpp"

namespace moesim::kernels::measure::cuda {

// Causal attention forward by one cuDNN kernel: softmax(scale Q K^T, keys after the query masked) V
// with scale = 1 / sqrt(head_dim), bf16 in and out, sums in fp32. Q and the output are [batch,
// sequence, heads, head_dim], K and V [batch, sequence, kv_heads, head_dim], as projections write
// them. cuDNN (9 and later) is loaded when the first is made, so that a program without it starts.
class CudnnAttention {
 public:
  // The engine is the first of cuDNN's own order that takes the shape. Calls queue on `stream`.
  // Throws NotMeasurable with the reason: no cuDNN in this build or on this machine, one that is
  // too old, no engine for the shape.
  CudnnAttention(const profile::AttentionShape& shape, Stream stream);
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;  // it owns descriptors
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  std::string version() const;  // "9.19.0", as the library says
  // Of device memory that `run` needs beside its tensors.
  std::int64_t workspace_bytes() const;
  // Queues one call. Throws NotMeasurable with cuDNN's words.
  void run(const void* q, const void* k, const void* v, void* out, void* workspace);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moesim::kernels::measure::cuda
