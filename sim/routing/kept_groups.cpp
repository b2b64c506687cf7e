#include "sim/routing/kept_groups.hpp"

namespace moesim::routing {

KeptGroups::KeptGroups(int groups, int kept, const TileKernels& kernels)
    : groups_(groups),
      kept_(kept),
      kernels_(kernels),
      scores_(static_cast<std::size_t>(groups) * tile_tokens),
      best_(static_cast<std::size_t>(kept) * tile_tokens),
      best_scores_(best_.size()),
      last_(best_.data() + best_.size() - tile_tokens),
      least_(best_scores_.data() + best_scores_.size() - tile_tokens) {}

void KeptGroups::find() {
  kernels_.largest(scores_.data(), 0, groups_, kept_,
                   {best_.data(), best_scores_.data(), tile_tokens});
}

}  // namespace moesim::routing
