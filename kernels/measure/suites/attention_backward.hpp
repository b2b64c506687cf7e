#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "kernels/measure/suites/attention.hpp"

namespace moesim::kernels::measure {

// The backward pass of attention_point()'s: from Q, K, V, the output, its gradient and the
// statistics to the gradients of Q, K and V.
PointSpec attention_backward_point(const profile::AttentionShape& shape);
// Shapes of the forward suite, of at most 16,384 tokens.
Suite attention_backward_suite();

// One head's query with what the forward pass left of it and the gradient of its output.
struct AttentionQuery {
  std::span<const double> query, out, out_gradient;  // [head_dim]
  double statistics = 0;  // its largest score and the logarithm of its sum of exponentials
};

// Its gradient, in fp64, against the keys that it sees; `keys` and `values` [keys, head_dim].
// `size`: the sum of the magnitudes it is made of, differences as sums.
AttentionRow attention_query_gradient(const AttentionQuery& query, std::span<const double> keys,
                                      std::span<const double> values);

// The gradients of one key and its value: those of all queries that see it, added one by one.
class AttentionKeyGradients {
 public:
  AttentionKeyGradients(std::span<const double> key, std::span<const double> value);
  void add(const AttentionQuery& query);
  const AttentionRow& of_key() const { return key_gradient_; }
  const AttentionRow& of_value() const { return value_gradient_; }

 private:
  std::span<const double> key_, value_;
  AttentionRow key_gradient_, value_gradient_;
};

// How often a term of a gradient may have been rounded to bf16 before the last sum is. The gradient
// of a score is, before it meets a key: once.
constexpr int query_gradient_roundings = 1;
// A share or the gradient of a score is, before it meets a row; where several heads have one key,
// each head's sum is too, before those of the group are added.
int key_gradient_roundings(const profile::AttentionShape& shape);
// The first element of `got`, in bf16, that is further from `wanted` than so many roundings of its
// terms and that of the result can bring it; nothing if none is.
std::optional<std::size_t> wrong_element(std::span<const double> got, const AttentionRow& wanted,
                                         int roundings);

}  // namespace moesim::kernels::measure
