#pragma once

#include <cudnn_graph.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "kernels/measure/cuda/libraries/attention_operations.hpp"
#include "kernels/measure/cuda/libraries/cudnn.hpp"
#include "kernels/measure/cuda/libraries/cudnn_library.hpp"
#include "sim/profile/kernels/attention_curve.hpp"

namespace moesim::kernels::measure::cuda {

// Names of the tensors that a call of attention passes by address; the others are the kernel's own.
enum AttentionName : std::int64_t {
  name_q = 1,
  name_k,
  name_v,
  name_out,
  name_scale,
  name_masked,
  first_own,
  // The tensors of the backward pass; the statistics are also of a forward pass before it.
  name_statistics = 1001,
  name_out_gradient,
  name_q_gradient,
  name_k_gradient,
  name_v_gradient,
  name_one,       // the number
  name_row_sums,  // room for the backward pass: of dO O, and of the gradient of Q
  name_q_sums
};

// What a plan is made for: a handle's device, or one that is described and need not be there.
class CudnnTarget {
 public:
  explicit CudnnTarget(cudnnHandle_t handle) : handle_(handle) {}
  // Needs cuDNN 9.8 or later. `device` is cuDNN's own JSON of a device's properties (its member
  // names are those of cuDNN's messages). Throws NotMeasurable if this build or the library is
  // older, or the text is not what it wants.
  explicit CudnnTarget(const std::string& device);

  cudnnHandle_t handle() const { return handle_; }
  // Null for a handle's own device.
  const CudnnDescriptor* device() const { return device_ ? &*device_ : nullptr; }

 private:
  cudnnHandle_t handle_ = nullptr;
  std::optional<CudnnDescriptor> device_;
};

// Causal attention or its backward pass as a graph of operations, with what it refers to.
class AttentionGraph {
 public:
  explicit AttentionGraph(const profile::AttentionShape& shape,
                          AttentionPass pass = AttentionPass::forward);
  // The finished graph; it refers to this object's parts.
  CudnnDescriptor finished(const CudnnTarget& target) const;

 private:
  std::deque<CudnnDescriptor> parts_;  // in places that stay, as operations refer to them
  std::deque<CudnnDescriptor> operations_;
};

// A plan of the first engine, in cuDNN's own order, that takes the graph and compiles. Throws
// NotMeasurable with cuDNN's words.
CudnnDescriptor first_plan(const CudnnDescriptor& graph, const CudnnTarget& target);

}  // namespace moesim::kernels::measure::cuda
