#pragma once

#include <compare>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/training/drawn/drawn_losses.hpp"
#include "sim/training/drawn/shared_draws.hpp"

namespace moesim::study {

// The routings of a search, drawn when they are first asked for and kept (training::SharedDraws):
// layouts with the same groups of experts and tokens per rank share them. Beside these what a
// search bounds by: the losses of a routing wherever it is, and the least loads. May be called by
// several threads.
class DrawnRoutings {
 public:
  static constexpr std::size_t usual_bytes = training::SharedDraws::usual_bytes;
  explicit DrawnRoutings(std::size_t most_bytes = usual_bytes) : shared_(most_bytes) {}

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

  using Loads = training::SharedDraws::Loads;
  // All three as DrawnLoads throws.
  Loads loads(const training::TrainingJob& job) { return shared_.loads(job); }
  Loads rows(const training::TrainingJob& job) { return shared_.rows(job); }
  // What rows() are at least in each layer, where that is faster to draw: of a router that
  // rectifies what a capacity drops, the rows that it keeps, which are those of the same router
  // without rectification, from the same counts; the rectified ones come on top: routers that
  // differ in rectification alone have one. Else rows().
  struct Least {
    Loads loads;
    bool are_own = true;
  };
  Least least(const training::TrainingJob& job);
  // Loads, those of least() too, and those that were drawn again.
  std::size_t drawn() const { return shared_.drawn(); }
  std::size_t bytes() const { return shared_.bytes(); }  // of the loads kept

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
  training::SharedDraws shared_;
  training::ExpectedLoss nothing_;
};

}  // namespace moesim::study
