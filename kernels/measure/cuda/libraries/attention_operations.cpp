#ifdef MOESIM_HAVE_CUDNN
#include "kernels/measure/cuda/libraries/attention_operations.hpp"

namespace moesim::kernels::measure::cuda {

AttentionOperations::AttentionOperations(const profile::AttentionShape& shape,
                                         std::int64_t first_own, std::deque<CudnnDescriptor>& parts,
                                         std::deque<CudnnDescriptor>& operations)
    : batch_(shape.batch),
      length_(shape.sequence),
      heads_(shape.heads),
      kv_heads_(shape.kv_heads),
      dim_(shape.head_dim),
      next_(first_own),
      parts_(parts),
      operations_(operations) {}

CudnnDescriptor& AttentionOperations::described(std::int64_t name, cudnnDataType_t type,
                                                const Sizes& sizes, const Sizes& strides) {
  constexpr std::int64_t alignment = 16;
  return parts_.emplace_back(CUDNN_BACKEND_TENSOR_DESCRIPTOR, "a tensor")
      .set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, name)
      .set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type)
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, alignment)
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, sizes)
      .set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, strides);
}

const CudnnDescriptor& AttentionOperations::of_queries(std::int64_t name) {
  return described(name, CUDNN_DATA_BFLOAT16, {batch_, heads_, length_, dim_},
                   {length_ * heads_ * dim_, dim_, heads_ * dim_, 1})
      .finalize();
}

const CudnnDescriptor& AttentionOperations::of_keys(std::int64_t name, bool transposed) {
  const std::int64_t whole = length_ * kv_heads_ * dim_, apart = kv_heads_ * dim_;
  if (transposed) {
    return described(name, CUDNN_DATA_BFLOAT16, {batch_, kv_heads_, dim_, length_},
                     {whole, dim_, 1, apart})
        .finalize();
  }
  return described(name, CUDNN_DATA_BFLOAT16, {batch_, kv_heads_, length_, dim_},
                   {whole, dim_, apart, 1})
      .finalize();
}

const CudnnDescriptor& AttentionOperations::of_rows(std::int64_t name) {
  return described(name, CUDNN_DATA_FLOAT, {batch_, heads_, length_, 1},
                   {heads_ * length_, length_, 1, 1})
      .finalize();
}

const CudnnDescriptor& AttentionOperations::sums_of_queries(std::int64_t name) {
  return described(name, CUDNN_DATA_FLOAT, {batch_, heads_, length_, dim_},
                   {heads_ * length_ * dim_, length_ * dim_, dim_, 1})
      .finalize();
}

const CudnnDescriptor& AttentionOperations::scalar(std::int64_t name) {
  return described(name, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1})
      .set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, true)
      .finalize();
}

const CudnnDescriptor& AttentionOperations::scratch(cudnnDataType_t type, const Sizes& sizes,
                                                    const Sizes& strides) {
  return described(next_++, type, sizes, strides)
      .set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, true)
      .finalize();
}

const CudnnDescriptor& AttentionOperations::scores(cudnnDataType_t type) {
  return scratch(type, {batch_, heads_, length_, length_},
                 {heads_ * length_ * length_, length_ * length_, length_, 1});
}

const CudnnDescriptor& AttentionOperations::row() {
  return scratch(CUDNN_DATA_FLOAT, {batch_, heads_, length_, 1}, {heads_ * length_, length_, 1, 1});
}

const CudnnDescriptor& AttentionOperations::query() {
  return scratch(CUDNN_DATA_FLOAT, {batch_, heads_, length_, dim_},
                 {heads_ * length_ * dim_, length_ * dim_, dim_, 1});
}

const CudnnDescriptor& AttentionOperations::transposed_scores(cudnnDataType_t type) {
  return scratch(type, {batch_, heads_, length_, length_},
                 {heads_ * length_ * length_, length_ * length_, 1, length_});
}

const CudnnDescriptor& AttentionOperations::key_of_each_head() {
  return scratch(CUDNN_DATA_BFLOAT16, {batch_, heads_, length_, dim_},
                 {heads_ * length_ * dim_, length_ * dim_, dim_, 1});
}

const CudnnDescriptor& AttentionOperations::own_keys() {
  return scratch(CUDNN_DATA_BFLOAT16, {batch_, kv_heads_, length_, dim_},
                 {length_ * kv_heads_ * dim_, dim_, kv_heads_ * dim_, 1});
}

void AttentionOperations::product(const CudnnDescriptor& left, const CudnnDescriptor& right,
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

void AttentionOperations::reshape(const CudnnDescriptor& from, const CudnnDescriptor& result) {
  operations_.emplace_back(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, "a reshaping")
      .set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, from)
      .set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, result)
      .finalize();
}

void AttentionOperations::element(cudnnPointwiseMode_t mode, const CudnnDescriptor& first,
                                  const CudnnDescriptor* second, const CudnnDescriptor& result,
                                  Element more) {
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

void AttentionOperations::pointwise(cudnnPointwiseMode_t mode, const CudnnDescriptor& first,
                                    const CudnnDescriptor* second, const CudnnDescriptor& result) {
  element(mode, first, second, result, Element());
}

void AttentionOperations::reduction(cudnnReduceTensorOp_t mode, const CudnnDescriptor& from,
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

const CudnnDescriptor& AttentionOperations::causal_mask(const CudnnDescriptor& from,
                                                        const CudnnDescriptor& lowest) {
  const CudnnDescriptor& row = scores(CUDNN_DATA_INT32);
  const CudnnDescriptor& column = scores(CUDNN_DATA_INT32);
  element(CUDNN_POINTWISE_GEN_INDEX, from, nullptr, row, {.axis = 2});
  element(CUDNN_POINTWISE_GEN_INDEX, from, nullptr, column, {.axis = 3});
  const CudnnDescriptor& seen = scores(CUDNN_DATA_BOOLEAN);
  element(CUDNN_POINTWISE_CMP_GE, row, &column, seen, {.computed = CUDNN_DATA_BOOLEAN});
  const CudnnDescriptor& masked = scores();
  element(CUDNN_POINTWISE_BINARY_SELECT, from, &lowest, masked, {.chooser = &seen});
  return masked;
}

}  // namespace moesim::kernels::measure::cuda
#endif
