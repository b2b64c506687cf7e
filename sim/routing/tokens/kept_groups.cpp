#include "sim/routing/tokens/kept_groups.hpp"

#include <algorithm>
#include <limits>

namespace moesim::routing {

KeptGroups::KeptGroups(int groups, int kept, const TileKernels& kernels)
    : groups_(groups),
      kept_(kept),
      kernels_(kernels),
      scores_(static_cast<std::size_t>(groups) * tile_tokens),
      mask_(scores_.size()),
      best_(static_cast<std::size_t>(kept + 1) * tile_tokens),
      best_scores_(best_.size(), -std::numeric_limits<float>::infinity()) {}

// The last of the best groups and all groups ahead of it are kept.
void KeptGroups::find() {
  kernels_.largest(scores_.data(), 0, groups_, std::min(kept_ + 1, groups_),
                   {best_.data(), best_scores_.data(), tile_tokens});
  const float* least = worst_scores();
  const std::uint16_t* last = best_.data() + worst_row();
  for (int group = 0; group < groups_; ++group) {
    const std::size_t row = static_cast<std::size_t>(group) * tile_tokens;
    for (std::size_t token = 0; token < tile_tokens; ++token) {
      const float score = scores_[row + token];
      const bool kept = (score > least[token]) | ((score == least[token]) & (group <= last[token]));
      mask_[row + token] = kept ? ~0U : 0U;
    }
  }
}

bool KeptGroups::are_apart(float margin, const float* least) const {
  const float* worst = worst_scores();
  const float* next = worst + tile_tokens;
  std::uint32_t apart = 1;
  for (std::size_t token = 0; token < tile_tokens; ++token) {
    apart &= (worst[token] - next[token] > margin) & (worst[token] > least[token]) ? 1U : 0U;
  }
  return apart != 0;
}

}  // namespace moesim::routing
