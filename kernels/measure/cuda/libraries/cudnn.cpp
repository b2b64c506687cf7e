#include "kernels/measure/cuda/libraries/cudnn.hpp"

#include <fmt/format.h>

#include "kernels/measure/devices/device.hpp"

#ifdef MOESIM_HAVE_CUDNN
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/measure/cuda/libraries/attention_graph.hpp"
#endif

namespace moesim::kernels::measure::cuda {

#ifdef MOESIM_HAVE_CUDNN

CudnnHandle::CudnnHandle(Stream stream) {
  if (!cudnn().trouble.empty()) throw NotMeasurable(cudnn().trouble);
  cudnnHandle_t handle = nullptr;
  const cudnnStatus_t created = cudnn().create(&handle);
  if (created != CUDNN_STATUS_SUCCESS) {
    throw NotMeasurable(fmt::format("cuDNN does not start: {}", cudnn().words(created)));
  }
  const cudnnStatus_t set = cudnn().set_stream(handle, stream);
  if (set != CUDNN_STATUS_SUCCESS) cudnn().destroy(handle);
  cudnn().check(set, "its stream");
  handle_ = handle;
}

CudnnHandle::~CudnnHandle() { cudnn().destroy(static_cast<cudnnHandle_t>(handle_)); }

struct CudnnAttention::State {
  State(const profile::AttentionShape& shape, cudnnHandle_t on, AttentionPass pass)
      : handle(on),
        operations(shape, pass),
        graph(operations.finished(CudnnTarget(on))),
        plan(first_plan(graph, CudnnTarget(on))),
        scale(static_cast<float>(1 / std::sqrt(static_cast<double>(shape.head_dim)))) {
    std::int64_t count = 0;
    cudnn().check(cudnn().get_attribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                        CUDNN_TYPE_INT64, 1, &count, &workspace_bytes),
                  "the plan's workspace");
  }

  void run(const std::vector<std::int64_t>& names, const std::vector<const void*>& addresses,
           void* workspace) {
    CudnnDescriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "a call's addresses");
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, names)
        .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, addresses)
        .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace)
        .finalize();
    cudnn().check(cudnn().execute(handle, plan.get(), pack.get()), "an attention call");
  }

  cudnnHandle_t handle;
  AttentionGraph operations;
  CudnnDescriptor graph;
  CudnnDescriptor plan;
  float scale;
  // A finite score: what it is subtracted from is a real one's, since a query sees itself.
  float lowest = std::numeric_limits<float>::lowest();
  float one = 1;
  std::int64_t workspace_bytes = 0;
};

CudnnAttention::CudnnAttention(const profile::AttentionShape& shape, const CudnnHandle& handle,
                               AttentionPass pass) {
  // Older ones leave it to the caller to clear the sums of Q's gradient.
  constexpr std::size_t oldest_backward = 90600;
  if (pass == AttentionPass::backward && cudnn().get_version() < oldest_backward) {
    throw NotMeasurable("attention's backward pass is measured with cuDNN 9.6 and later");
  }
  state_ = std::make_unique<State>(shape, static_cast<cudnnHandle_t>(handle.get()), pass);
}

CudnnAttention::~CudnnAttention() = default;

std::string CudnnAttention::version() const {
  const std::size_t number = cudnn().get_version();
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

std::int64_t CudnnAttention::workspace_bytes() const { return state_->workspace_bytes; }

void CudnnAttention::run(const void* q, const void* k, const void* v, void* out, void* workspace,
                         void* statistics) {
  std::vector<std::int64_t> names{name_q, name_k, name_v, name_out, name_scale, name_masked};
  std::vector<const void*> addresses{q, k, v, out, &state_->scale, &state_->lowest};
  if (statistics != nullptr) {
    names.push_back(name_statistics);
    addresses.push_back(statistics);
  }
  state_->run(names, addresses, workspace);
}

void CudnnAttention::run_backward(const AttentionGradients& of, void* workspace) {
  state_->run(
      {name_q, name_k, name_v, name_out, name_scale, name_masked, name_out_gradient,
       name_statistics, name_q_gradient, name_k_gradient, name_v_gradient, name_one, name_row_sums,
       name_q_sums},
      {of.q, of.k, of.v, of.out, &state_->scale, &state_->lowest, of.out_gradient, of.statistics,
       of.q_gradient, of.k_gradient, of.v_gradient, &state_->one, of.row_sums, of.q_sums},
      workspace);
}

#else

struct CudnnAttention::State {};

CudnnHandle::CudnnHandle(Stream) {
  throw NotMeasurable(
      "this program was built without cuDNN's headers: build it where cudnn.h of "
      "version 9 is found");
}
CudnnHandle::~CudnnHandle() = default;
CudnnAttention::CudnnAttention(const profile::AttentionShape&, const CudnnHandle&, AttentionPass) {}
CudnnAttention::~CudnnAttention() = default;
std::string CudnnAttention::version() const { return ""; }
std::int64_t CudnnAttention::workspace_bytes() const { return 0; }
void CudnnAttention::run(const void*, const void*, const void*, void*, void*, void*) {}
void CudnnAttention::run_backward(const AttentionGradients&, void*) {}

#endif

}  // namespace moesim::kernels::measure::cuda
