#include "kernels/measure/suites/attention.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace moesim::kernels::measure {

PointSpec attention_point(const profile::AttentionShape& shape) {
  PointSpec spec;
  spec.op = "attention";
  spec.params = {{"dtype", "bf16"},           {"causal", true},
                 {"batch", shape.batch},      {"sequence", shape.sequence},
                 {"heads", shape.heads},      {"kv_heads", shape.kv_heads},
                 {"head_dim", shape.head_dim}};
  const auto tokens = static_cast<double>(shape.batch * shape.sequence);
  const auto dim = static_cast<double>(shape.head_dim);
  // Two products, each over the half of the scores that the mask leaves.
  spec.flops = 2 * tokens * static_cast<double>(shape.sequence * shape.heads) * dim;
  spec.bytes = 2 * tokens * dim * static_cast<double>(2 * (shape.heads + shape.kv_heads));
  spec.held_bytes = spec.bytes + rotation_bytes;
  // cuDNN 9.19 compiles a plan in 0.5 to 0.7 s.
  spec.prepare_s = 0.6;
  return spec;
}

namespace {

std::vector<PointSpec> attention_points(Ranks) {
  struct Heads {
    std::int64_t heads, kv_heads, head_dim;
  };
  constexpr std::array widths{Heads{32, 32, 128}, Heads{32, 8, 128}, Heads{8, 1, 128},
                              Heads{16, 16, 128}, Heads{64, 8, 64},  Heads{16, 16, 64},
                              Heads{16, 4, 256}};
  constexpr std::int64_t most_tokens = 65536;
  std::vector<PointSpec> points;
  for (const std::int64_t sequence : {128, 512, 1024, 2048, 4096, 8192, 16384}) {
    for (const std::int64_t batch : {1, 4, 16}) {
      if (batch * sequence > most_tokens) continue;
      for (const auto& [heads, kv_heads, head_dim] : widths) {
        points.push_back(attention_point({batch, sequence, heads, kv_heads, head_dim}));
      }
    }
  }
  return points;
}

}  // namespace

Suite attention_suite() {
  return {"attention",
          "causal attention forward of cuDNN, bf16, prefills of 128 to 16,384 tokens",
          {"attention"},
          1,
          attention_points};
}

profile::AttentionShape attention_shape(const Params& params) {
  return {params.at("batch"), params.at("sequence"), params.at("heads"), params.at("kv_heads"),
          params.at("head_dim")};
}

AttentionRow attention_row(std::span<const double> query, std::span<const double> keys,
                           std::span<const double> values) {
  const std::size_t dim = query.size(), count = keys.size() / dim;
  std::vector<double> shares(count);
  for (std::size_t key = 0; key < count; ++key) {
    double score = 0;
    for (std::size_t at = 0; at < dim; ++at) score += query[at] * keys[key * dim + at];
    shares[key] = score / std::sqrt(static_cast<double>(dim));
  }
  const double most = *std::max_element(shares.begin(), shares.end());
  double sum = 0;
  for (double& share : shares) sum += share = std::exp(share - most);
  AttentionRow row{std::vector<double>(dim), std::vector<double>(dim)};
  for (std::size_t key = 0; key < count; ++key) {
    for (std::size_t at = 0; at < dim; ++at) {
      const double part = shares[key] / sum * values[key * dim + at];
      row.out[at] += part;
      row.size[at] += std::abs(part);
    }
  }
  return row;
}

}  // namespace moesim::kernels::measure
