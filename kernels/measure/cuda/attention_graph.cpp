#ifdef MOESIM_HAVE_CUDNN
#include "kernels/measure/cuda/attention_graph.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/measure/devices/device.hpp"

namespace moesim::kernels::measure::cuda {
namespace {

using Sizes = std::vector<std::int64_t>;

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

}  // namespace

// The operations of causal attention in the order in which cuDNN's documentation gives the pattern
// of fused flash attention (graph API, "Fused Attention fprop"): product, scale, mask by comparing
// row and column, softmax by maximum, exponentials and sum, product.
class AttentionGraph::Builder {
 public:
  Builder(const profile::AttentionShape& shape, std::deque<CudnnDescriptor>& parts,
          std::deque<CudnnDescriptor>& operations)
      : batch_(shape.batch),
        length_(shape.sequence),
        heads_(shape.heads),
        parts_(parts),
        operations_(operations) {
    const std::int64_t dim = shape.head_dim, kv = shape.kv_heads;
    const Sizes query{batch_, heads_, length_, dim}, own{batch_, kv, length_, dim};
    const Sizes query_strides{length_ * heads_ * dim, dim, heads_ * dim, 1};
    const Sizes own_strides{length_ * kv * dim, dim, kv * dim, 1};
    const CudnnDescriptor& q = tensor(name_q, CUDNN_DATA_BFLOAT16, query, query_strides);
    // The product takes K transposed: [batch, kv_heads, head_dim, sequence].
    const CudnnDescriptor& k = tensor(name_k, CUDNN_DATA_BFLOAT16, {batch_, kv, dim, length_},
                                      {own_strides[0], own_strides[1], 1, own_strides[2]});
    const CudnnDescriptor& v = tensor(name_v, CUDNN_DATA_BFLOAT16, own, own_strides);
    const CudnnDescriptor& out = tensor(name_out, CUDNN_DATA_BFLOAT16, query, query_strides);
    const CudnnDescriptor& scale = scalar(name_scale);
    const CudnnDescriptor& lowest = scalar(name_masked);

    const CudnnDescriptor& scores = scratch(CUDNN_DATA_FLOAT);
    product(q, k, scores);
    const CudnnDescriptor& scaled = scratch(CUDNN_DATA_FLOAT);
    pointwise(CUDNN_POINTWISE_MUL, scores, &scale, scaled);
    const CudnnDescriptor& masked = mask(scaled, lowest);
    // The second product reads shares in the inputs' type.
    const CudnnDescriptor& shares = scratch(CUDNN_DATA_BFLOAT16);
    softmax(masked, shares);
    product(shares, v, out);
  }

 private:
  CudnnDescriptor& described(std::int64_t name, cudnnDataType_t type, const Sizes& sizes,
                             const Sizes& strides) {
    constexpr std::int64_t alignment = 16;
    return parts_.emplace_back(CUDNN_BACKEND_TENSOR_DESCRIPTOR, "a tensor")
        .set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, name)
        .set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type)
        .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, alignment)
        .set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, sizes)
        .set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, strides);
  }
  const CudnnDescriptor& tensor(AttentionName name, cudnnDataType_t type, const Sizes& sizes,
                                const Sizes& strides) {
    return described(name, type, sizes, strides).finalize();
  }
  const CudnnDescriptor& scalar(AttentionName name) {
    return described(name, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1})
        .set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, true)
        .finalize();
  }
  // A value between operations, never in memory: of each query with `columns` keys.
  const CudnnDescriptor& scratch(cudnnDataType_t type, std::int64_t columns = 0) {
    if (columns == 0) columns = length_;
    return described(next_++, type, {batch_, heads_, length_, columns},
                     {heads_ * length_ * columns, length_ * columns, columns, 1})
        .set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, true)
        .finalize();
  }

  void product(const CudnnDescriptor& left, const CudnnDescriptor& right,
               const CudnnDescriptor& result) {
    const CudnnDescriptor& how =
        parts_.emplace_back(CUDNN_BACKEND_MATMUL_DESCRIPTOR, "a product")
            .set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
            .finalize();
    operations_.emplace_back(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, "a product's operation")
        .set(CUDNN_ATTR_OPERATION_MATMUL_DESC, how)
        .set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, left)
        .set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, right)
        .set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, result)
        .finalize();
  }

  struct Element {
    cudnnDataType_t computed = CUDNN_DATA_FLOAT;
    std::int64_t axis = -1;                    // of CUDNN_POINTWISE_GEN_INDEX
    const CudnnDescriptor* chooser = nullptr;  // of CUDNN_POINTWISE_BINARY_SELECT
  };
  void pointwise(cudnnPointwiseMode_t mode, const CudnnDescriptor& first,
                 const CudnnDescriptor* second, const CudnnDescriptor& result, Element more) {
    CudnnDescriptor& how =
        parts_.emplace_back(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "an elementwise operation")
            .set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode)
            .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, more.computed);
    if (more.axis >= 0) how.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, more.axis);
    how.finalize();
    CudnnDescriptor& operation = operations_
                                     .emplace_back(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
                                                   "an elementwise operation's place")
                                     .set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how)
                                     .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, first)
                                     .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, result);
    if (second != nullptr) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *second);
    if (more.chooser != nullptr) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *more.chooser);
    operation.finalize();
  }
  void pointwise(cudnnPointwiseMode_t mode, const CudnnDescriptor& first,
                 const CudnnDescriptor* second, const CudnnDescriptor& result) {
    pointwise(mode, first, second, result, Element());
  }

  void reduction(cudnnReduceTensorOp_t mode, const CudnnDescriptor& from,
                 const CudnnDescriptor& result) {
    const CudnnDescriptor& how =
        parts_.emplace_back(CUDNN_BACKEND_REDUCTION_DESCRIPTOR, "a reduction")
            .set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, mode)
            .set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
            .finalize();
    operations_.emplace_back(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, "a reduction's place")
        .set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, how)
        .set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, from)
        .set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, result)
        .finalize();
  }

  // Scores of keys after the query give way to `lowest`.
  const CudnnDescriptor& mask(const CudnnDescriptor& scores, const CudnnDescriptor& lowest) {
    const CudnnDescriptor& row = scratch(CUDNN_DATA_INT32);
    const CudnnDescriptor& column = scratch(CUDNN_DATA_INT32);
    pointwise(CUDNN_POINTWISE_GEN_INDEX, scores, nullptr, row, {.axis = 2});
    pointwise(CUDNN_POINTWISE_GEN_INDEX, scores, nullptr, column, {.axis = 3});
    const CudnnDescriptor& seen = scratch(CUDNN_DATA_BOOLEAN);
    pointwise(CUDNN_POINTWISE_CMP_GE, row, &column, seen, {.computed = CUDNN_DATA_BOOLEAN});
    const CudnnDescriptor& masked = scratch(CUDNN_DATA_FLOAT);
    pointwise(CUDNN_POINTWISE_BINARY_SELECT, scores, &lowest, masked, {.chooser = &seen});
    return masked;
  }

  void softmax(const CudnnDescriptor& scores, const CudnnDescriptor& shares) {
    const CudnnDescriptor& most = scratch(CUDNN_DATA_FLOAT, 1);
    reduction(CUDNN_REDUCE_TENSOR_MAX, scores, most);
    const CudnnDescriptor& below = scratch(CUDNN_DATA_FLOAT);
    pointwise(CUDNN_POINTWISE_SUB, scores, &most, below);
    const CudnnDescriptor& powers = scratch(CUDNN_DATA_FLOAT);
    pointwise(CUDNN_POINTWISE_EXP, below, nullptr, powers);
    const CudnnDescriptor& sum = scratch(CUDNN_DATA_FLOAT, 1);
    reduction(CUDNN_REDUCE_TENSOR_ADD, powers, sum);
    // The logarithm of the sum of exponentials, which a backward pass would read: cuDNN's engines
    // take the graph only with it, though nobody reads it here.
    const CudnnDescriptor& logarithm = scratch(CUDNN_DATA_FLOAT, 1);
    pointwise(CUDNN_POINTWISE_LOG, sum, nullptr, logarithm);
    const CudnnDescriptor& statistics = scratch(CUDNN_DATA_FLOAT, 1);
    pointwise(CUDNN_POINTWISE_ADD, most, &logarithm, statistics);
    pointwise(CUDNN_POINTWISE_DIV, powers, &sum, shares);
  }

  std::int64_t batch_, length_, heads_;
  std::int64_t next_ = first_own;
  std::deque<CudnnDescriptor>& parts_;
  std::deque<CudnnDescriptor>& operations_;
};

AttentionGraph::AttentionGraph(const profile::AttentionShape& shape) {
  Builder(shape, parts_, operations_);
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
