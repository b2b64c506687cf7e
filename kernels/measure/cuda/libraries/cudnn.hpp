#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/measure/cuda/device/device_kernels.hpp"
#include "sim/profile/kernels/attention_shape.hpp"

namespace moesim::kernels::measure::cuda {

// cuDNN on the current device, calls queued on one stream. One for all plans: to start cuDNN takes
// longer than a point's samples.
class CudnnHandle {
 public:
  // Throws NotMeasurable with the reason: no cuDNN in this build or on this machine, one that is
  // too old, or one that does not start.
  explicit CudnnHandle(Stream stream);
  ~CudnnHandle();
  CudnnHandle(const CudnnHandle&) = delete;  // it owns the library's handle
  CudnnHandle& operator=(const CudnnHandle&) = delete;
  void* get() const { return handle_; }  // a cudnnHandle_t

 private:
  void* handle_ = nullptr;
};

// What a plan computes: the output; the output and the statistics that the backward pass reads
// (each query's largest score and the logarithm of its sum of exponentials, added up); gradients.
enum class AttentionPass { forward, forward_for_backward, backward };

// Device memory of a backward pass, laid out as that of the forward pass: gradients as what they
// are of. `statistics` and `row_sums` are fp32 [batch, heads, sequence], `q_sums` fp32 [batch,
// heads, sequence, head_dim]; the last two are room for it.
struct AttentionGradients {
  const void *q, *k, *v, *out, *out_gradient, *statistics;
  void *q_gradient, *k_gradient, *v_gradient;
  void *row_sums, *q_sums;
};

// Causal attention forward by one cuDNN kernel: softmax(scale Q K^T, keys after the query masked) V
// with scale = 1 / sqrt(head_dim), bf16 in and out, sums in fp32. Q and the output are [batch,
// sequence, heads, head_dim], K and V [batch, sequence, kv_heads, head_dim], as projections write
// them. Or the backward pass of that. cuDNN (9 and later) is loaded when the first handle is made,
// so that a program without it starts.
class CudnnAttention {
 public:
  // The engine is the first of cuDNN's own order that takes the shape; its kernel is compiled here.
  // Throws NotMeasurable with the reason: no engine for the shape. `handle` must outlive this.
  CudnnAttention(const profile::AttentionShape& shape, const CudnnHandle& handle,
                 AttentionPass pass = AttentionPass::forward);
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;  // it owns descriptors
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  std::string version() const;  // "9.19.0", as the library says
  // The bytes of device memory that `run` needs beside its tensors.
  std::int64_t workspace_bytes() const;
  // Queues one call. Throws NotMeasurable with cuDNN's words. `statistics` of a plan for
  // forward_for_backward.
  void run(const void* q, const void* k, const void* v, void* out, void* workspace,
           void* statistics = nullptr);
  // Queues one call of a plan for backward.
  void run_backward(const AttentionGradients& tensors, void* workspace);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moesim::kernels::measure::cuda
