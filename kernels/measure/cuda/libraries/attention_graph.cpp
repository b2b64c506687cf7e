#ifdef MOESIM_HAVE_CUDNN
#include "kernels/measure/cuda/libraries/attention_graph.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/measure/devices/device.hpp"

namespace moesim::kernels::measure::cuda {
namespace {

// Headers before cuDNN 9.8 do not know them.
constexpr auto type_device = static_cast<cudnnBackendDescriptorType_t>(38);
constexpr auto attribute_device_json = static_cast<cudnnBackendAttributeName_t>(2702);
constexpr auto attribute_order_device = static_cast<cudnnBackendAttributeName_t>(204);
constexpr auto attribute_plan_device = static_cast<cudnnBackendAttributeName_t>(407);
#if CUDNN_VERSION >= 90800
static_assert(type_device == CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
static_assert(attribute_device_json == CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION);
static_assert(attribute_order_device == CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
static_assert(attribute_plan_device == CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
#endif

using Operations = AttentionOperations;

// The shares of the keys, from their masked scores; their largest and the logarithm of the sum of
// exponentials, added up, to `statistics` (0: not in memory), which a backward pass reads. cuDNN's
// engines take the graph only with it, though nobody may read it.
const CudnnDescriptor& softmax(Operations& list, const CudnnDescriptor& scores,
                               std::int64_t statistics) {
  // The second product reads shares in the inputs' type.
  const CudnnDescriptor& shares = list.scores(CUDNN_DATA_BFLOAT16);
  const CudnnDescriptor& most = list.row();
  list.reduction(CUDNN_REDUCE_TENSOR_MAX, scores, most);
  const CudnnDescriptor& below = list.scores();
  list.pointwise(CUDNN_POINTWISE_SUB, scores, &most, below);
  const CudnnDescriptor& powers = list.scores();
  list.pointwise(CUDNN_POINTWISE_EXP, below, nullptr, powers);
  const CudnnDescriptor& sum = list.row();
  list.reduction(CUDNN_REDUCE_TENSOR_ADD, powers, sum);
  const CudnnDescriptor& logarithm = list.row();
  list.pointwise(CUDNN_POINTWISE_LOG, sum, nullptr, logarithm);
  const CudnnDescriptor& both = statistics == 0 ? list.row() : list.of_rows(statistics);
  list.pointwise(CUDNN_POINTWISE_ADD, most, &logarithm, both);
  list.pointwise(CUDNN_POINTWISE_DIV, powers, &sum, shares);
  return shares;
}

// In the order in which cuDNN's documentation gives the pattern of fused flash attention (graph
// API, "Fused Attention fprop"): product, scale, mask by comparing row and column, softmax by
// maximum, exponentials and sum, product.
void forward(Operations& list, std::int64_t statistics) {
  const CudnnDescriptor& q = list.of_queries(name_q);
  const CudnnDescriptor& k = list.of_keys(name_k, true);
  const CudnnDescriptor& v = list.of_keys(name_v, false);
  const CudnnDescriptor& out = list.of_queries(name_out);
  const CudnnDescriptor& scale = list.scalar(name_scale);
  const CudnnDescriptor& lowest = list.scalar(name_masked);
  const CudnnDescriptor& scores = list.scores();
  list.product(q, k, scores);
  const CudnnDescriptor& scaled = list.scores();
  list.pointwise(CUDNN_POINTWISE_MUL, scores, &scale, scaled);
  const CudnnDescriptor& masked = list.causal_mask(scaled, lowest);
  list.product(softmax(list, masked, statistics), v, out);
}

// The gradient of K or V: of each head of the queries a product, summed over those of a group.
void key_gradient(Operations& list, bool grouped, const CudnnDescriptor& of_scores,
                  const CudnnDescriptor& with, const CudnnDescriptor& result) {
  const CudnnDescriptor& transposed = list.transposed_scores(CUDNN_DATA_BFLOAT16);
  list.reshape(of_scores, transposed);
  if (!grouped) return list.product(transposed, with, result);
  const CudnnDescriptor& each = list.key_of_each_head();
  list.product(transposed, with, each);
  list.reduction(CUDNN_REDUCE_TENSOR_ADD, each, result);
}

// The pattern of fused flash attention backward (graph API, "Fused Attention bprop"), with P the
// shares, recomputed from Q, K and the statistics: the rows' sums of dO O; dV = P^T dO; dS = P (dO
// V^T - those sums) scale; dK = dS^T Q; dQ = dS K, summed in fp32 before it is rounded.
void backward(Operations& list, bool grouped) {
  const CudnnDescriptor& q = list.of_queries(name_q);
  const CudnnDescriptor& k = list.of_keys(name_k, true);
  const CudnnDescriptor& v = list.of_keys(name_v, true);
  const CudnnDescriptor& out = list.of_queries(name_out);
  const CudnnDescriptor& out_gradient = list.of_queries(name_out_gradient);
  const CudnnDescriptor& scale = list.scalar(name_scale);

  const CudnnDescriptor& multiplied = list.query();
  list.pointwise(CUDNN_POINTWISE_MUL, out_gradient, &out, multiplied);
  const CudnnDescriptor& sum = list.row();
  list.reduction(CUDNN_REDUCE_TENSOR_ADD, multiplied, sum);
  const CudnnDescriptor& row_sums = list.of_rows(name_row_sums);
  list.pointwise(CUDNN_POINTWISE_MUL, sum, &list.scalar(name_one), row_sums);

  const CudnnDescriptor& scores = list.scores();
  list.product(q, k, scores);
  const CudnnDescriptor& scaled = list.scores();
  list.pointwise(CUDNN_POINTWISE_MUL, scores, &scale, scaled);
  const CudnnDescriptor& below = list.scores();
  list.pointwise(CUDNN_POINTWISE_SUB, scaled, &list.of_rows(name_statistics), below);
  const CudnnDescriptor& masked = list.causal_mask(below, list.scalar(name_masked));
  const CudnnDescriptor& shares = list.scores();
  list.pointwise(CUDNN_POINTWISE_EXP, masked, nullptr, shares);
  key_gradient(list, grouped, shares, out_gradient, list.of_keys(name_v_gradient, false));

  const CudnnDescriptor& share_gradient = list.scores();
  list.product(out_gradient, v, share_gradient);
  const CudnnDescriptor& less = list.scores();
  list.pointwise(CUDNN_POINTWISE_SUB, share_gradient, &row_sums, less);
  const CudnnDescriptor& weighted = list.scores();
  list.pointwise(CUDNN_POINTWISE_MUL, less, &shares, weighted);
  const CudnnDescriptor& score_gradient = list.scores();
  list.pointwise(CUDNN_POINTWISE_MUL, weighted, &scale, score_gradient);
  key_gradient(list, grouped, score_gradient, q, list.of_keys(name_k_gradient, false));

  const CudnnDescriptor& own_keys = list.own_keys();
  list.reshape(k, own_keys);
  const CudnnDescriptor& query_sums = list.sums_of_queries(name_q_sums);
  list.product(score_gradient, own_keys, query_sums);
  list.pointwise(CUDNN_POINTWISE_IDENTITY, query_sums, nullptr, list.of_queries(name_q_gradient));
}

}  // namespace

AttentionGraph::AttentionGraph(const profile::AttentionShape& shape, AttentionPass pass) {
  AttentionOperations list(shape, first_own, parts_, operations_);
  if (pass == AttentionPass::backward) {
    backward(list, shape.heads != shape.kv_heads);
  } else {
    constexpr std::int64_t unnamed = 0;
    forward(list,
            pass == AttentionPass::forward_for_backward ? std::int64_t{name_statistics} : unnamed);
  }
}

CudnnDescriptor AttentionGraph::finished(const CudnnTarget& target) const {
  std::vector<cudnnBackendDescriptor_t> list;
  for (const CudnnDescriptor& operation : operations_) list.push_back(operation.get());
  CudnnDescriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "the graph of operations");
  if (target.device() == nullptr) {
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, target.handle());
  }
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, list).finalize();
  return graph;
}

CudnnTarget::CudnnTarget(const std::string& device) {
  if (!cudnn().trouble.empty()) throw NotMeasurable(cudnn().trouble);
  constexpr std::size_t oldest = 90800;
  if (cudnn().get_version() < oldest) {
    throw NotMeasurable("cuDNN plans for a device that is not there from 9.8 on");
  }
  const std::vector<char> text(device.c_str(), device.c_str() + device.size() + 1);
  device_.emplace(type_device, "a device's properties");
  device_->set(attribute_device_json, CUDNN_TYPE_CHAR, text).finalize();
}

// A plan of the first engine, in cuDNN's order, that takes the graph. Throws NotMeasurable.
CudnnDescriptor first_plan(const CudnnDescriptor& graph, const CudnnTarget& target) {
  std::string refused = "cuDNN knows no engine for it";
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    CudnnDescriptor order(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "the order of engines");
    order.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)
        .set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
    if (target.device() != nullptr) order.set(attribute_order_device, *target.device());
    const cudnnStatus_t ordered = cudnn().finalize(order.get());
    if (ordered != CUDNN_STATUS_SUCCESS) {
      refused = cudnn().words(ordered);
      continue;
    }
    constexpr std::int64_t most = 16;
    std::deque<CudnnDescriptor> engines;
    std::array<cudnnBackendDescriptor_t, most> list{};
    for (cudnnBackendDescriptor_t& each : list) {
      each = engines.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "an engine").get();
    }
    std::int64_t count = 0;
    cudnn().check(cudnn().get_attribute(order.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                        CUDNN_TYPE_BACKEND_DESCRIPTOR, most, &count, list.data()),
                  "the order of engines");
    for (std::int64_t place = 0; place < std::min(count, most); ++place) {
      CudnnDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "a plan");
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engines[static_cast<std::size_t>(place)]);
      if (target.device() != nullptr) {
        plan.set(attribute_plan_device, *target.device());
      } else {
        plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, target.handle());
      }
      const cudnnStatus_t planned = cudnn().finalize(plan.get());
      if (planned == CUDNN_STATUS_SUCCESS) return plan;
      refused = cudnn().words(planned);
    }
  }
  throw NotMeasurable(fmt::format("cuDNN has no fused attention for this shape: {}", refused));
}

}  // namespace moesim::kernels::measure::cuda
#endif
