#pragma once

#include <atomic>
#include <compare>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/bounded_cache.hpp"
#include "sim/training/drawn/drawn_loads.hpp"
#include "sim/training/drawn/drawn_losses.hpp"

namespace moesim::study {

// The routings of a search, drawn when they are first asked for and kept: layouts with the same
// groups of experts and tokens per rank share them. Loads of more than `most_bytes` are not kept:
// those asked for longest ago are drawn again, and are the same. May be called by several threads.
class DrawnRoutings {
 public:
  static constexpr std::size_t usual_bytes = std::size_t{384} << 20;
  explicit DrawnRoutings(std::size_t most_bytes = usual_bytes)
      : draws_(most_bytes / 3 * 2), loads_(most_bytes / 6), rows_(most_bytes / 6) {}

  // Draws what loss() returns, on up to `jobs` threads. Jobs that differ in their router alone are
  // drawn together. `progress` hears the number of draws after each, from its thread; may be empty.
  void draw_losses(const std::vector<const training::TrainingJob*>& asked, int jobs,
                   const std::function<void(std::size_t draws)>& progress = {});
  // The loss that a search goes by, of the job's routing at its number of tokens per rank. Every
  // rank drops by itself, so how many share the experts matters little: a group of up to 8.
  // Intra-GPU rectification depends on how many experts a rank has: the job's own number of ranks,
  // and 8 layers. All zero where nothing drops. Precondition: draw_losses() had the same routing
  // with as many tokens per rank and expert ranks.
  const training::ExpectedLoss& loss(const training::TrainingJob& job) const;
  // Whether that is drawn, or needs no draw: draw_losses() ends early where `progress` throws.
  bool knows_loss(const training::TrainingJob& job) const;

  using Loads = std::shared_ptr<const training::DrawnLoads>;
  // All three as DrawnLoads throws.
  Loads loads(const training::TrainingJob& job);
  // The same, but for the losses of their figures, where these take longer than the rest.
  Loads rows(const training::TrainingJob& job);
  // What rows() are at least in each layer, where that is faster to draw: of a router that
  // rectifies what a capacity drops, the rows that it keeps, which are those of the same router
  // without rectification, from the same counts; the rectified ones come on top. Else rows().
  struct Least {
    Loads loads;
    bool are_own = true;
  };
  Least least(const training::TrainingJob& job);
  // Loads, those of least() too, and those that were drawn again.
  std::size_t drawn() const { return drawn_; }
  std::size_t bytes() const { return loads_.bytes() + rows_.bytes(); }  // of the loads kept

 private:
  // Tokens per rank, ranks.
  using Place = std::pair<std::int64_t, int>;
  static Place place_of(const training::TrainingJob& job);
  struct LossKey {
    Place place;
    std::string routing;  // all that loss_job() draws, but for the place
    auto operator<=>(const LossKey&) const = default;
  };
  static LossKey loss_key(const training::TrainingJob& job);

  struct DrawnLoss {
    training::ExpectedLoss loss;
    bool is_drawn = false;
  };
  std::map<LossKey, DrawnLoss> losses_;
  using Kept = BoundedCache<std::pair<std::string, training::DrawnShape>, training::DrawnLoads>;
  Loads of(Kept& kept, const training::TrainingJob& job, bool with_losses);

  routing::DrawCache draws_;
  // By what is drawn: routers that differ in rectification alone have one least().
  Kept loads_, rows_;
  std::atomic<std::size_t> drawn_{0};
  training::ExpectedLoss nothing_;
};

}  // namespace moesim::study
