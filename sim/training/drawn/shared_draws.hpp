#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "sim/base/bounded_cache.hpp"
#include "sim/routing/counts/draw_cache.hpp"
#include "sim/training/drawn/drawn_loads.hpp"
#include "sim/training/drawn/further_losses.hpp"

namespace moesim::training {

// What several steps draw alike, such as the rows of a grid: steps with the same routing, groups of
// experts and tokens per rank have the same loads and further losses, and steps that differ in
// their capacity factor or rectification alone share the tokens, trained biases and pilots that
// these are counted by. Each has the same bits as drawn alone. Of at most `most_bytes`: what was
// asked for longest ago is forgotten, and drawn again. May be used by several threads.
class SharedDraws {
 public:
  static constexpr std::size_t usual_bytes = std::size_t{384} << 20;
  explicit SharedDraws(std::size_t most_bytes = usual_bytes)
      : draws_(most_bytes / 3 * 2), loads_(most_bytes / 6), further_(most_bytes / 6) {}

  // DrawnLoads of a job, with losses. Throws as it does.
  std::shared_ptr<const DrawnLoads> loads(const TrainingJob& job, const DrawProgress& progress);
  // further_losses() of these arguments.
  std::shared_ptr<const FurtherLosses> further(const TrainingJob& job, int steps, int threads,
                                               const DrawProgress& progress);

 private:
  using Key = std::pair<std::string, DrawnShape>;

  routing::DrawCache draws_;
  BoundedCache<Key, DrawnLoads> loads_;
  BoundedCache<std::pair<Key, int>, FurtherLosses> further_;  // by steps, too
};

}  // namespace moesim::training
