#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "sim/base/bounded_cache.hpp"
#include "sim/routing/counts/draw_cache.hpp"
#include "sim/training/drawn/drawn_loads.hpp"
#include "sim/training/drawn/further_losses.hpp"

namespace moesim::training {

// What several steps draw alike, such as the rows of a grid and the candidates of a search: steps
// with the same routing, groups of experts and tokens per rank have the same loads and further
// losses, and steps that differ in their capacity factor or rectification alone share the tokens,
// trained biases and pilots that these are counted by. Each has the same bits as drawn alone. Of at
// most `most_bytes`: what was asked for longest ago is forgotten, and drawn again. May be used by
// several threads. Precondition: of all jobs models, and clusters, of the same name
// (TrainingJob::typed) are the same, as those of one command line are.
class SharedDraws {
 public:
  static constexpr std::size_t usual_bytes = std::size_t{384} << 20;
  explicit SharedDraws(std::size_t most_bytes = usual_bytes)
      : draws_(most_bytes / 3 * 2), loads_(most_bytes / 4), further_(most_bytes / 12) {}

  using Loads = std::shared_ptr<const DrawnLoads>;
  // DrawnLoads of a job, with losses. Throws as it does.
  Loads loads(const TrainingJob& job, const DrawProgress& progress = {});
  // The same, but for the losses of their figures, where these take longer than the rest.
  Loads rows(const TrainingJob& job);
  // further_losses() of these arguments.
  std::shared_ptr<const FurtherLosses> further(const TrainingJob& job, int steps, int threads,
                                               const DrawProgress& progress);

  // What these are drawn by; what draws otherwise may share it.
  routing::DrawCache& draws() { return draws_; }
  std::size_t drawn() const { return drawn_; }          // loads, also those drawn again
  std::size_t bytes() const { return loads_.bytes(); }  // of the loads kept

 private:
  // All that is drawn; whether with losses.
  using Key = std::tuple<std::string, DrawnShape, bool>;
  static Key key_of(const TrainingJob& job, bool with_losses);
  Loads of(const TrainingJob& job, bool with_losses, const DrawProgress& progress);

  routing::DrawCache draws_;
  BoundedCache<Key, DrawnLoads> loads_;
  BoundedCache<std::pair<Key, int>, FurtherLosses> further_;  // by steps, too
  std::atomic<std::size_t> drawn_{0};
};

}  // namespace moesim::training
