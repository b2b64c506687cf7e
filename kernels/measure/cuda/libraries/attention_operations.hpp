#pragma once

#include <cudnn_graph.h>

#include <cstdint>
#include <deque>
#include <vector>

#include "kernels/measure/cuda/libraries/cudnn_library.hpp"
#include "sim/profile/kernels/attention_curve.hpp"

namespace moesim::kernels::measure::cuda {

// The operations of attention in cuDNN's terms, one after another, for one shape. Tensors are
// [batch, heads, rows, columns] to cuDNN.
class AttentionOperations {
 public:
  using Sizes = std::vector<std::int64_t>;

  // What it makes is kept in `parts` and `operations`; values without an address get the names from
  // `first_own` on.
  AttentionOperations(const profile::AttentionShape& shape, std::int64_t first_own,
                      std::deque<CudnnDescriptor>& parts, std::deque<CudnnDescriptor>& operations);

  // A tensor of the queries' heads, or of the keys' and values', in bf16, as projections write
  // them: [batch, sequence, heads, head_dim] in memory. Keys and values may be meant transposed:
  // [.., head_dim, sequence].
  const CudnnDescriptor& of_queries(std::int64_t name);
  const CudnnDescriptor& of_keys(std::int64_t name, bool transposed);
  // One fp32 figure for each query and head, [batch, heads, sequence] in memory.
  const CudnnDescriptor& of_rows(std::int64_t name);
  // fp32, [batch, heads, sequence, head_dim] in memory.
  const CudnnDescriptor& sums_of_queries(std::int64_t name);
  const CudnnDescriptor& scalar(std::int64_t name);

  // Values between operations, never in memory: of each query with all keys (scores), with one
  // figure (row), with its head_dim elements (query); `transposed` ones of each key with all
  // queries.
  const CudnnDescriptor& scores(cudnnDataType_t type = CUDNN_DATA_FLOAT);
  const CudnnDescriptor& row();
  const CudnnDescriptor& query();
  const CudnnDescriptor& transposed_scores(cudnnDataType_t type);
  // A tensor of each key, for all heads of the queries, in bf16.
  const CudnnDescriptor& key_of_each_head();
  // K as it lies in memory, where the graph has it transposed.
  const CudnnDescriptor& own_keys();

  void product(const CudnnDescriptor& left, const CudnnDescriptor& right,
               const CudnnDescriptor& result);
  void reshape(const CudnnDescriptor& from, const CudnnDescriptor& result);
  void reduction(cudnnReduceTensorOp_t mode, const CudnnDescriptor& from,
                 const CudnnDescriptor& result);
  void pointwise(cudnnPointwiseMode_t mode, const CudnnDescriptor& first,
                 const CudnnDescriptor* second, const CudnnDescriptor& result);
  // The scores with those of keys after the query replaced by `lowest`.
  const CudnnDescriptor& causal_mask(const CudnnDescriptor& scores, const CudnnDescriptor& lowest);

 private:
  struct Element {
    cudnnDataType_t computed = CUDNN_DATA_FLOAT;
    std::int64_t axis = -1;                    // of CUDNN_POINTWISE_GEN_INDEX
    const CudnnDescriptor* chooser = nullptr;  // of CUDNN_POINTWISE_BINARY_SELECT
  };
  CudnnDescriptor& described(std::int64_t name, cudnnDataType_t type, const Sizes& sizes,
                             const Sizes& strides);
  const CudnnDescriptor& scratch(cudnnDataType_t type, const Sizes& sizes, const Sizes& strides);
  void element(cudnnPointwiseMode_t mode, const CudnnDescriptor& first,
               const CudnnDescriptor* second, const CudnnDescriptor& result, Element more);

  std::int64_t batch_, length_, heads_, kv_heads_, dim_;
  std::int64_t next_;
  std::deque<CudnnDescriptor>& parts_;
  std::deque<CudnnDescriptor>& operations_;
};

}  // namespace moesim::kernels::measure::cuda
