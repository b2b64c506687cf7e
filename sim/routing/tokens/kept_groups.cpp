#include "sim/routing/tokens/kept_groups.hpp"

namespace moesim::routing {

KeptGroups::KeptGroups(int groups, int kept, const TileKernels& kernels)
    : groups_(groups),
      kept_(kept),
      kernels_(kernels),
      scores_(static_cast<std::size_t>(groups) * tile_tokens),
      mask_(scores_.size()),
      best_(static_cast<std::size_t>(kept) * tile_tokens),
      best_scores_(best_.size()) {}

// The last of the best groups and all groups ahead of it are kept.
void KeptGroups::find() {
  kernels_.largest(scores_.data(), 0, groups_, kept_,
                   {best_.data(), best_scores_.data(), tile_tokens});
  const float* least = best_scores_.data() + best_scores_.size() - tile_tokens;
  const std::uint16_t* last = best_.data() + best_.size() - tile_tokens;
  for (int group = 0; group < groups_; ++group) {
    const std::size_t row = static_cast<std::size_t>(group) * tile_tokens;
    for (std::size_t token = 0; token < tile_tokens; ++token) {
      const float score = scores_[row + token];
      const bool kept = (score > least[token]) | ((score == least[token]) & (group <= last[token]));
      mask_[row + token] = kept ? ~0U : 0U;
    }
  }
}

}  // namespace moesim::routing
