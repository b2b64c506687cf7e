#include "kernels/measure/suites/attention_backward.hpp"

#include <array>
#include <cmath>

#include "kernels/measure/points/close.hpp"

namespace moesim::kernels::measure {

PointSpec attention_backward_point(const profile::AttentionShape& shape) {
  PointSpec spec = attention_point(shape);
  spec.op = "attention-backward";
  // Five products where the forward pass has two.
  spec.flops *= 2.5;
  // Q, K, V and the output, the gradients of all four, and fp32 sums of Q's gradient written and
  // read.
  const double sums = 4 * static_cast<double>(shape.batch * shape.sequence * shape.heads) *
                      static_cast<double>(shape.head_dim);
  spec.bytes = 2 * spec.bytes + 2 * sums;
  spec.held_bytes = spec.bytes + rotation_bytes;
  spec.prepare_s *= 2;  // the forward pass has a plan too
  return spec;
}

namespace {

std::vector<PointSpec> attention_backward_points(Ranks) {
  struct Heads {
    std::int64_t heads, kv_heads, head_dim;
  };
  constexpr std::array widths{Heads{32, 32, 128}, Heads{32, 8, 128}, Heads{64, 8, 64},
                              Heads{16, 4, 256}};
  constexpr std::int64_t most_tokens = 16384;
  std::vector<PointSpec> points;
  for (const std::int64_t sequence : {512, 1024, 2048, 4096, 8192, 16384}) {
    for (const std::int64_t batch : {1, 4}) {
      if (batch * sequence > most_tokens) continue;
      for (const auto& [heads, kv_heads, head_dim] : widths) {
        points.push_back(attention_backward_point({batch, sequence, heads, kv_heads, head_dim}));
      }
    }
  }
  return points;
}

// One query with one key.
struct Pair {
  double share = 0;
  double score_gradient = 0;
  double score_gradient_size = 0;
};

double dot(std::span<const double> left, std::span<const double> right) {
  double sum = 0;
  for (std::size_t at = 0; at < left.size(); ++at) sum += left[at] * right[at];
  return sum;
}

// P = exp(scale q k - statistics), dS = scale P (dO v - dO out).
Pair pair_of(const AttentionQuery& query, std::span<const double> key,
             std::span<const double> value) {
  const double scale = 1 / std::sqrt(static_cast<double>(key.size()));
  Pair pair;
  pair.share = std::exp(scale * dot(query.query, key) - query.statistics);
  const double product = dot(query.out_gradient, value);
  const double less = dot(query.out_gradient, query.out);
  pair.score_gradient = scale * pair.share * (product - less);
  pair.score_gradient_size = scale * pair.share * (std::abs(product) + std::abs(less));
  return pair;
}

void add(AttentionRow& sum, double factor, double size, std::span<const double> row) {
  for (std::size_t at = 0; at < row.size(); ++at) {
    sum.out[at] += factor * row[at];
    sum.size[at] += size * std::abs(row[at]);
  }
}

AttentionRow zeros(std::size_t dim) { return {std::vector<double>(dim), std::vector<double>(dim)}; }

}  // namespace

Suite attention_backward_suite() {
  return {"attention-backward",
          "causal attention backward of cuDNN, bf16, 512 to 16,384 tokens",
          {},
          1,
          attention_backward_points};
}

AttentionRow attention_query_gradient(const AttentionQuery& query, std::span<const double> keys,
                                      std::span<const double> values) {
  const std::size_t dim = query.query.size();
  AttentionRow gradient = zeros(dim);
  for (std::size_t at = 0; at < keys.size(); at += dim) {
    const auto key = keys.subspan(at, dim);
    const Pair pair = pair_of(query, key, values.subspan(at, dim));
    add(gradient, pair.score_gradient, pair.score_gradient_size, key);
  }
  return gradient;
}

AttentionKeyGradients::AttentionKeyGradients(std::span<const double> key,
                                             std::span<const double> value)
    : key_(key),
      value_(value),
      key_gradient_(zeros(key.size())),
      value_gradient_(zeros(value.size())) {}

void AttentionKeyGradients::add(const AttentionQuery& query) {
  const Pair pair = pair_of(query, key_, value_);
  measure::add(key_gradient_, pair.score_gradient, pair.score_gradient_size, query.query);
  measure::add(value_gradient_, pair.share, pair.share, query.out_gradient);
}

int key_gradient_roundings(const profile::AttentionShape& shape) {
  return shape.heads == shape.kv_heads ? 1 : 2;
}

std::optional<std::size_t> wrong_element(std::span<const double> got, const AttentionRow& wanted,
                                         int roundings) {
  // bf16 has 8 significant bits: a rounding errs by 2^-8 / (1 + 2^-8) of a number at most, so that
  // two of them, the second of what the first has made larger, err by 2^-7. 2^-14 are for sums and
  // exponentials in fp32.
  const double slack = roundings * 0x1p-8 + 0x1p-14;
  for (std::size_t at = 0; at < got.size(); ++at) {
    if (!close(got[at], wanted.out[at], wanted.size[at] * slack)) return at;
  }
  return std::nullopt;
}

}  // namespace moesim::kernels::measure
