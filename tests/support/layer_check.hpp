#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/layer/reference.hpp"
#include "tests/support/catch.hpp"

// A layer of all its ranks against the fp64 reference.
namespace moesim::kernels::testing {

using Values = std::vector<double>;

inline Values slice(const Bfloat16* from, std::size_t count) {
  Values values;
  for (std::size_t at = 0; at < count; ++at) {
    values.push_back(static_cast<double>(to_float(from[at])));
  }
  return values;
}

// |got - wanted| over |wanted| as vectors. On its way a result is rounded to bf16 about six times
// (hidden, activated, row, out; as many backward, or a mask's weights), each by 0.0016 of its size
// root mean square: 0.004 together.
inline double error_of(const Values& got, const Values& wanted) {
  double off = 0, size = 0;
  for (std::size_t at = 0; at < wanted.size(); ++at) {
    off += std::pow(got[at] - wanted[at], 2);
    size += wanted[at] * wanted[at];
  }
  return off == 0 ? 0 : std::sqrt(off / size);
}
inline constexpr double tolerance = 0.02;

inline double norm(const Values& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

inline void add_outer(Values& to, std::size_t offset, const Values& left, const Values& right) {
  for (std::size_t row = 0; row < left.size(); ++row) {
    for (std::size_t column = 0; column < right.size(); ++column) {
      to[offset + row * right.size() + column] += left[row] * right[column];
    }
  }
}

// What all ranks' tokens leave in the weights' gradients.
struct WeightGradients {
  std::vector<Values> up, down;  // [expert]
  std::vector<Values> gate;      // [rank]
};

// The weights of all experts, wherever they are.
template <typename Group>
layer::ReferenceWeights weights_of(const Group& group) {
  const layer::LayerProblem& problem = group.at(0).plan().problem;
  layer::ReferenceWeights all;
  all.hidden = problem.hidden;
  all.ffn = problem.ffn;
  all.gate = group.buffer(0, layer::Buffer::gate_weight);
  const std::int64_t one = std::int64_t{problem.hidden} * problem.ffn;
  for (int expert = 0; expert < problem.router.experts; ++expert) {
    const int rank = expert / problem.local_experts(), local = expert % problem.local_experts();
    all.up.push_back(group.buffer(rank, layer::Buffer::up_weight) + local * 2 * one);
    all.down.push_back(group.buffer(rank, layer::Buffer::down_weight) + local * one);
  }
  return all;
}

template <typename Group>
layer::ReferenceToken token_of(const Group& group, int rank, int token) {
  using layer::Buffer;
  const layer::LayerProblem& problem = group.at(rank).plan().problem;
  const auto hidden = static_cast<std::size_t>(problem.hidden);
  const std::size_t begin = hidden * static_cast<std::size_t>(token);
  return {slice(group.buffer(rank, Buffer::x) + begin, hidden),
          slice(group.buffer(rank, Buffer::out_gradient) + begin, hidden),
          layer::rows_of_token(problem.router, group.at(rank).router(), token)};
}

template <typename Group>
void check_tokens(const Group& group, int rank, WeightGradients& sums) {
  using layer::Buffer;
  const layer::LayerProblem& problem = group.at(rank).plan().problem;
  const layer::ReferenceWeights weights = weights_of(group);
  const auto hidden = static_cast<std::size_t>(problem.hidden);
  const auto experts = static_cast<std::size_t>(problem.router.experts);
  for (int token = 0; token < problem.router.tokens; ++token) {
    INFO("rank " << rank << " token " << token);
    const layer::ReferenceToken in = token_of(group, rank, token);
    const layer::ReferenceResult expected =
        layer::reference_token(weights, in, problem.residual, problem.normaliser);
    const auto at = static_cast<std::size_t>(token);
    REQUIRE(error_of(slice(group.buffer(rank, Buffer::out) + at * hidden, hidden), expected.out) <
            tolerance);
    REQUIRE(error_of(slice(group.buffer(rank, Buffer::x_gradient) + at * hidden, hidden),
                     expected.x_gradient) < tolerance);
    const float* logits = group.template buffer<float>(rank, Buffer::logit_gradient) + at * experts;
    // u = <dL/do, row> may cancel: rows that are off by 0.003 of their size at random leave it off
    // by 0.003 / sqrt(32) |dL/do| |row| (root mean square); seven times that.
    double size = 0;
    for (const Values& row : expected.output) size = std::max(size, norm(row));
    size *= norm(in.out_gradient);
    for (std::size_t expert = 0; expert < experts; ++expert) {
      REQUIRE(std::abs(static_cast<double>(logits[expert]) - expected.logit_gradient[expert]) <=
              0.004 * size);
    }
    add_outer(sums.gate[static_cast<std::size_t>(rank)], 0, expected.logit_gradient, in.x);
    for (std::size_t row = 0; row < in.rows.size(); ++row) {
      const auto expert = static_cast<std::size_t>(in.rows[row].expert);
      add_outer(sums.up[expert], 0, expected.hidden_gradient[row], in.x);
      add_outer(sums.down[expert], 0, expected.output_gradient[row], expected.activated[row]);
    }
  }
}

// Holds all tokens' results and gradients, and those of the weights, to the fp64 reference. `group`
// has the ranks' layers after a forward and a backward: ranks(), at(rank).plan() and .router(), and
// buffer<Value>(rank, which), in host memory.
template <typename Group>
void check_layer(const Group& group) {
  using layer::Buffer;
  const layer::LayerProblem& problem = group.at(0).plan().problem;
  const auto one = static_cast<std::size_t>(problem.hidden) * static_cast<std::size_t>(problem.ffn);
  const auto experts = static_cast<std::size_t>(problem.router.experts);
  const auto gates = experts * static_cast<std::size_t>(problem.hidden);
  WeightGradients sums{
      std::vector<Values>(experts, Values(2 * one, 0)),
      std::vector<Values>(experts, Values(one, 0)),
      std::vector<Values>(static_cast<std::size_t>(group.ranks()), Values(gates, 0))};
  for (int rank = 0; rank < group.ranks(); ++rank) check_tokens(group, rank, sums);
  for (int rank = 0; rank < group.ranks(); ++rank) {
    const float* gate = group.template buffer<float>(rank, Buffer::gate_weight_gradient);
    CHECK(error_of(Values(gate, gate + gates), sums.gate[static_cast<std::size_t>(rank)]) <
          2 * tolerance);
  }
  for (std::size_t expert = 0; expert < experts; ++expert) {
    const auto local = static_cast<std::size_t>(problem.local_experts());
    const int rank = static_cast<int>(expert / local);
    INFO("expert " << expert);
    CHECK(error_of(slice(group.buffer(rank, Buffer::up_weight_gradient) + expert % local * 2 * one,
                         2 * one),
                   sums.up[expert]) < tolerance);
    CHECK(error_of(
              slice(group.buffer(rank, Buffer::down_weight_gradient) + expert % local * one, one),
              sums.down[expert]) < tolerance);
  }
}

}  // namespace moesim::kernels::testing
