#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/routing/rules/router_config.hpp"
#include "sim/routing/tokens/tile_kernels.hpp"

namespace moesim::routing {

// How many of a group's best scores make its own (GroupScore); at least 1.
inline std::size_t summed_scores(const RouterConfig& config) {
  if (config.group_score == GroupScore::max) return 1;
  if (config.group_score == GroupScore::top2) return 2;
  return static_cast<std::size_t>(std::max(1, config.top_k / config.kept_groups));
}

// The groups of experts that each of 16 tokens may go to: the `kept` best by their scores; ties:
// the lower group first.
class KeptGroups {
 public:
  KeptGroups(int groups, int kept, const TileKernels& kernels);

  // The scores of a group; set them for all groups before find().
  float* scores(std::size_t group) { return scores_.data() + group * tile_tokens; }
  void find();
  // After find(): whether each token's worst kept group is better than all others by more than
  // `margin`, and itself above `least`. False where a score is NaN.
  bool are_apart(float margin, const float* least) const;
  bool keeps(std::size_t group, std::size_t token) const { return masks(group)[token] != 0; }
  // The same of the 16 tokens, as masks with all bits or none.
  const std::uint32_t* masks(std::size_t group) const { return mask_.data() + group * tile_tokens; }

 private:
  std::size_t worst_row() const { return static_cast<std::size_t>(kept_ - 1) * tile_tokens; }
  const float* worst_scores() const { return best_scores_.data() + worst_row(); }

  int groups_, kept_;
  const TileKernels& kernels_;
  std::vector<float> scores_;        // [group, 16]
  std::vector<std::uint32_t> mask_;  // [group, 16]
  std::vector<std::uint16_t> best_;  // [kept and the next one, 16], and their scores
  std::vector<float> best_scores_;
};

}  // namespace moesim::routing
