#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace moesim::routing {

// How often each expert was chosen, before drops.
struct CountTable {
  int steps = 1, ranks = 1, layers = 1, experts = 1;
  int top_k = 1;
  std::int64_t tokens = 1;           // per step, rank and layer
  std::vector<std::int64_t> counts;  // [step, rank, layer, expert]

  std::int64_t at(int step, int rank, int layer, int expert) const {
    const auto row = (static_cast<std::size_t>(step) * static_cast<std::size_t>(ranks) +
                      static_cast<std::size_t>(rank)) *
                         static_cast<std::size_t>(layers) +
                     static_cast<std::size_t>(layer);
    return counts[row * static_cast<std::size_t>(experts) + static_cast<std::size_t>(expert)];
  }
};

// Drift needs at least 4 steps.
inline constexpr int least_steps_of_drift = 4;
inline constexpr double least_autocorrelation = 0.3;
double most_autocorrelation(int steps);  // exp(-1 / steps)

// The variances of a score model, estimated from the moments of a table (see score_fit.hpp).
// Estimates may be negative.
struct ScoreComponents {
  double spread = 0, drift = 0, autocorrelation = 0, step = 0, rank = 0, rank_step = 0;
  double first_lag = 0;  // excess of same-step moments over those one step apart
};

// Moments of inclusion probabilities, of one expert or summed over experts.
struct ScoreMoments {
  double mean = 0;
  double alone = 0;           // pi^2 of one step and rank
  std::vector<double> same;   // [lag] of one rank; lag 0 unused
  std::vector<double> cross;  // [lag] of two ranks

  explicit ScoreMoments(int lags)
      : same(static_cast<std::size_t>(lags) + 1), cross(static_cast<std::size_t>(lags) + 1) {}
  void add(const ScoreMoments& other, double weight);
};

class MomentFit {
 public:
  explicit MomentFit(const CountTable& table);

  // The components by all experts of all layers, or without those of one of groups().
  ScoreComponents components() const { return without(-1); }
  ScoreComponents without(std::ptrdiff_t group) const;
  std::size_t groups() const { return groups_; }

  // [layer] E sum p^2 of lasting popularity, at least 1: without the contributions of counting
  // noise and of the terms in `parts`, times the scale of the layer.
  std::vector<double> lasting_squares(const ScoreComponents& parts) const;
  // [layer] What the variances are multiplied by in each layer (ScoreModel::layer_scale); empty: 1.
  void scale_layers(const std::vector<double>& scale) { scale_ = scale; }
  // How far the log-shares of single steps and ranks vary in one layer around those of the whole
  // table, without counting noise, and the standard error by a jackknife over experts.
  struct Variation {
    double value = 0, error = 0;
    double weight = 0;  // in the figures of all layers: sum of squared shares
  };
  std::vector<Variation> variations() const;
  // [layer, expert] mean shares of the layer's routes.
  std::vector<std::vector<double>> shares() const;
  double routes() const { return routes_; }  // of one layer, all steps and ranks

 private:
  struct Unit {  // one expert of one layer
    std::size_t layer = 0;
    double share = 0;
    ScoreMoments moments;
  };
  bool is_left_out(std::size_t unit, std::ptrdiff_t group) const {
    return static_cast<std::ptrdiff_t>(unit % groups_) == group;
  }
  double seen(std::ptrdiff_t group) const;
  void split(const ScoreMoments& sums, ScoreComponents& parts) const;
  std::vector<double> squares(const ScoreComponents& parts, std::ptrdiff_t group) const;
  double variation(std::size_t layer, std::ptrdiff_t left_out) const;

  int steps_, ranks_, layers_, experts_, top_k_, lags_;
  double routes_;
  std::size_t groups_ = 1;
  std::vector<Unit> units_;
  std::vector<double> scale_;
};

}  // namespace moesim::routing
