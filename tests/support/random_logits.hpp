#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "sim/routing/groups/group_logits.hpp"

namespace moesim::test {

using Logits = std::vector<std::vector<float>>;  // [rank][token * experts]

// Uniform in [-2, 2) or, for ties everywhere, one of `levels` whole numbers.
inline Logits random_logits(int experts, const std::vector<int>& tokens, unsigned seed,
                            int levels = 0) {
  std::mt19937 engine(seed);
  Logits logits;
  for (const int count : tokens) {
    std::vector<float> rows(static_cast<std::size_t>(count * experts));
    for (float& value : rows) {
      const double uniform = static_cast<double>(engine()) / 4294967296.0;
      value = static_cast<float>(levels > 0 ? std::floor(uniform * levels) : 4 * uniform - 2);
    }
    logits.push_back(rows);
  }
  return logits;
}

inline std::vector<routing::RankLogits> spans(const Logits& logits, int experts) {
  std::vector<routing::RankLogits> ranks;
  for (const auto& rows : logits) {
    ranks.push_back({rows, static_cast<std::int64_t>(rows.size()) / experts});
  }
  return ranks;
}

}  // namespace moesim::test
