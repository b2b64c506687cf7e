#pragma once

#include <span>
#include <vector>

#include "kernels/measure/suites/suite.hpp"
#include "sim/profile/kernels/attention_curve.hpp"

namespace moesim::kernels::measure {

// Causal attention forward in bf16, keys and values of the same tokens as the queries.
PointSpec attention_point(const profile::AttentionShape& shape);
// Prefills of the shipped models' heads, whole and as a GPU's share of tensor parallelism.
Suite attention_suite();
// The shape of a point that attention_point() made.
profile::AttentionShape attention_shape(const Params& params);

// One query's output against `keys.size() / query.size()` keys, in fp64, and for each of its
// elements the sum of the magnitudes it is made of.
struct AttentionRow {
  std::vector<double> out;
  std::vector<double> size;
};
// softmax(q K^T / sqrt(head_dim)) V; `query` [head_dim], `keys` and `values` [keys, head_dim].
AttentionRow attention_row(std::span<const double> query, std::span<const double> keys,
                           std::span<const double> values);

}  // namespace moesim::kernels::measure
