#include "sim/routing/routers/sinkhorn_costs.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/base/random.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::routing;

namespace {

// [token, expert], as many tokens as whole tiles have.
std::vector<float> random_logits(std::size_t tokens, std::size_t experts) {
  Stream stream({1, Purpose::counts, 0, 0, 0});
  std::vector<float> logits;
  for (std::size_t at = 0; at < tokens * experts; ++at) {
    logits.push_back(static_cast<float>(stream.normal()));
  }
  return logits;
}

// One sum after the other, in the order of experts and of tokens, as moe_utils.py has the rounds.
std::vector<float> naive_scale(const std::vector<float>& logits, std::size_t tokens,
                               std::size_t experts) {
  std::vector<float> scale(experts, 1.0F);
  double change = 1;
  while (change > 1e-4F) {
    std::vector<double> sums(experts, 0.0);
    for (std::size_t token = 0; token < tokens; ++token) {
      float sum = 0;
      for (std::size_t expert = 0; expert < experts; ++expert) {
        sum += scale[expert] * std::exp(logits[token * experts + expert]);
      }
      const float of_token = 1 / static_cast<float>(tokens) / (sum + 1e-8F);
      for (std::size_t expert = 0; expert < experts; ++expert) {
        sums[expert] += static_cast<double>(of_token * std::exp(logits[token * experts + expert]));
      }
    }
    change = 0;
    for (std::size_t expert = 0; expert < experts; ++expert) {
      const float next =
          1 / static_cast<float>(experts) / (static_cast<float>(sums[expert]) + 1e-8F);
      change += static_cast<double>(std::abs(next - scale[expert])) / static_cast<double>(experts);
      scale[expert] = next;
    }
  }
  return scale;
}

}  // namespace

// Numbers of experts and tokens that are no multiples of 16, too.
TEST_CASE("scales of experts are those of single sums, to the bit, with every instruction set") {
  for (const std::size_t experts : {3U, 16U, 40U}) {
    for (const std::size_t tokens : {1U, 16U, 75U}) {
      const std::size_t padded = (tokens + tile_tokens - 1) / tile_tokens * tile_tokens;
      const std::vector<float> logits = random_logits(padded, experts);
      const std::vector<float> expected = naive_scale(logits, tokens, experts);
      for (const SimdLevel level : available_simd_levels()) {
        SinkhornCosts costs(static_cast<int>(experts), tile_kernels(level), level);
        costs.begin(static_cast<std::int64_t>(tokens));
        for (std::size_t first = 0; first < padded; first += tile_tokens) {
          std::vector<float> tile(experts * tile_tokens);
          for (std::size_t at = 0; at < tile.size(); ++at) {
            tile[at] = logits[(first + at % tile_tokens) * experts + at / tile_tokens];
          }
          costs.set_tile(static_cast<std::int64_t>(first), tile.data());
          CHECK(costs.tile(static_cast<std::int64_t>(first))[tile_tokens + 2] ==
                std::exp(tile[tile_tokens + 2]));
        }
        std::vector<float> scale;
        costs.find_scale(scale);
        CHECK(scale == expected);
      }
    }
  }
}
