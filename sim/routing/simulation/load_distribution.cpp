#include "sim/routing/simulation/load_distribution.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <numeric>
#include <utility>

#include "sim/base/random.hpp"
#include "sim/base/statistics.hpp"
#include "sim/routing/scores/unknown_popularity.hpp"
#include "sim/routing/simulation/popular_load.hpp"

namespace moesim::routing {
namespace {

using Kind = ScoreSource::Kind;
using Column = std::vector<double>;  // [trial]

constexpr std::size_t values = 64;

std::size_t below(Stream& stream, std::size_t count) {
  return static_cast<std::size_t>(std::uint64_t{stream.next_u32()} * count >> 32);
}

template <typename Value>
void shuffle(std::vector<Value>& column, Stream& stream) {
  for (std::size_t left = column.size(); left > 1; --left) {  // Fisher and Yates
    std::swap(column[left - 1], column[below(stream, left)]);
  }
}

// Finer than strata: of many experts the most popular one lies far out in the tail.
constexpr std::size_t fine = 16384;

// Equally likely values of the standard normal distribution.
Column normal_values() {
  Column found(fine);
  for (std::size_t value = 0; value < fine; ++value) {
    found[value] = normal_quantile((static_cast<double>(value) + 0.5) / double{fine});
  }
  return found;
}

// The same of Gamma(shape, 1), by adding up its density. Below 1 that has a pole: of x^shape it has
// none.
Column gamma_values(double shape) {
  constexpr std::size_t cells = 2 * fine;
  const double power = std::min(shape, 1.0);
  const double mode = std::max(shape - 1, 1e-9);
  const double last = std::pow(shape + 12 * std::sqrt(shape) + 30, power);
  const auto at = [&](std::size_t cell) {
    return std::pow((static_cast<double>(cell) + 0.5) / double{cells} * last, 1 / power);
  };
  Column sums(cells);
  double sum = 0;
  for (std::size_t cell = 0; cell < cells; ++cell) {
    const double x = at(cell);
    sum += std::exp((shape - power) * std::log(x / mode) - x + mode);
    sums[cell] = sum;
  }
  Column found(fine);
  std::size_t cell = 0;
  for (std::size_t value = 0; value < fine; ++value) {
    while (sums[cell] < (static_cast<double>(value) + 0.5) / double{fine} * sum) ++cell;
    found[value] = at(cell);
  }
  return found;
}

// Trials of one layer: the weights of experts, one after another, and the load they make.
class LayerTrials {
 public:
  LayerTrials(std::size_t trials, std::size_t experts_per_rank)
      : local_(experts_per_rank), rank_(trials), most_(trials), all_(trials) {}

  void add(std::size_t trial, double weight) { rank_[trial] += weight; }
  void end_expert() {
    ++experts_;
    if (experts_ % local_ != 0) return;
    for (std::size_t trial = 0; trial < rank_.size(); ++trial) {
      most_[trial] = std::max(most_[trial], rank_[trial]);
      all_[trial] += rank_[trial];
      rank_[trial] = 0;
    }
  }
  Column loads() const {
    const std::size_t rank_count = experts_ / local_;
    const auto ranks = static_cast<double>(rank_count);
    Column found(all_.size());
    for (std::size_t trial = 0; trial < found.size(); ++trial) {
      found[trial] = all_[trial] > 0 ? most_[trial] / all_[trial] * ranks : ranks;
    }
    return found;
  }

 private:
  std::size_t local_;
  std::size_t experts_ = 0;
  Column rank_, most_, all_;
};

// Latin hypercubes of trials: every expert's popularity has one value in each stratum.
class Trials {
 public:
  Trials(const RoutingJob& job, std::size_t trials)
      : source_(job.scores),
        experts_(static_cast<std::size_t>(job.experts)),
        ranks_(static_cast<std::size_t>(job.expert_parallel)),
        trials_(trials),
        stream_(StreamKey{0, Purpose::load_distribution, 0, 0, 0}),
        values_(normal_values()),
        strata_(trials) {
    std::iota(strata_.begin(), strata_.end(), std::uint32_t{0});
    const std::size_t local = experts_ / ranks_;
    if (source_.kind == Kind::dirichlet) {  // shares of ranks are of the same kind
      values_ = gamma_values(source_.parameter * static_cast<double>(local));
    }
    if (source_.kind == Kind::unknown) draw_trainings();
  }

  Column layer() {
    if (source_.kind == Kind::zipf) return zipf_layer();
    if (source_.kind == Kind::dirichlet) return dirichlet_layer();
    return normal_layer();
  }

 private:
  // As drawn_spread(): log of the spread in each trial, but for what differs among layers.
  void draw_trainings() {
    for (std::size_t trial = 0; trial < trials_; ++trial) {
      const double at = static_cast<double>(trial + 1) * (std::numbers::phi - 1);
      const bool lacks_loss = at - std::floor(at) < source_.share;
      const PopularitySpreads& spreads = lacks_loss ? unbalanced_spreads : balanced_spreads;
      trainings_.push_back(std::log(spreads.median) +
                           spreads.trainings * values_[(2 * trial + 1) * fine / (2 * trials_)]);
      among_layers_.push_back(spreads.layers);
    }
  }

  // A value in each stratum, in any order.
  Column column() {
    shuffle(strata_, stream_);
    Column found(trials_);
    for (std::size_t trial = 0; trial < trials_; ++trial) {
      found[trial] = values_[(strata_[trial] * fine + below(stream_, fine)) / trials_];
    }
    return found;
  }

  Column spreads() {
    if (source_.kind != Kind::unknown) return Column(trials_, source_.parameter);
    Column found = column();
    for (std::size_t trial = 0; trial < trials_; ++trial) {
      found[trial] = std::exp(trainings_[trial] + among_layers_[trial] * found[trial]);
    }
    return found;
  }

  Column normal_layer() {
    LayerTrials layer(trials_, experts_ / ranks_);
    Column widths = spreads();
    for (double& width : widths) width *= normal_noise_scale;
    for (std::size_t expert = 0; expert < experts_; ++expert) {
      const Column offsets = column();
      for (std::size_t trial = 0; trial < trials_; ++trial) {
        layer.add(trial, std::exp(widths[trial] * offsets[trial]));
      }
      layer.end_expert();
    }
    return layer.loads();
  }

  Column dirichlet_layer() {
    LayerTrials layer(trials_, 1);
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      const Column weights = column();
      for (std::size_t trial = 0; trial < trials_; ++trial) layer.add(trial, weights[trial]);
      layer.end_expert();
    }
    return layer.loads();
  }

  Column zipf_layer() {
    Column weights;
    for (std::size_t place = 1; place <= experts_; ++place) {
      weights.push_back(std::pow(static_cast<double>(place), -source_.parameter));
    }
    Column loads;
    for (std::size_t trial = 0; trial < trials_; ++trial) {
      shuffle(weights, stream_);
      LayerTrials one(1, experts_ / ranks_);
      for (const double weight : weights) {
        one.add(0, weight);
        one.end_expert();
      }
      loads.push_back(one.loads().front());
    }
    return loads;
  }

  const ScoreSource& source_;
  std::size_t experts_, ranks_, trials_;
  Stream stream_;
  Column values_;                      // equally likely, ascending
  std::vector<std::uint32_t> strata_;  // in a random order
  Column trainings_, among_layers_;    // [trial], of unknown
};

// Two values: with a burst in all layers and without.
std::vector<double> burst_loads(const RoutingJob& job) {
  const double heat = job.scores.parameter;
  const double local = static_cast<double>(job.experts) / job.expert_parallel;
  const double hot = (heat + local - 1) / (heat + job.experts - 1) * job.expert_parallel;
  const auto often = static_cast<std::size_t>(std::lround(job.scores.share * double{values}));
  std::vector<double> loads(values, 1.0);
  std::fill_n(loads.begin(), std::min(often, values), std::max(1.0, hot));
  std::sort(loads.begin(), loads.end());
  return loads;
}

// Means of equally many of the sorted values.
std::vector<double> in_quantiles(std::vector<double> sample) {
  std::sort(sample.begin(), sample.end());
  const std::size_t each = sample.size() / values;
  std::vector<double> found(values, 0.0);
  for (std::size_t at = 0; at < sample.size(); ++at) {
    found[at / each] += sample[at] / static_cast<double>(each);
  }
  return found;
}

// As many trials as cost little, whatever the number of weights that a trial takes.
std::size_t trials_of(const RoutingJob& job) {
  constexpr std::size_t weights = std::size_t{1} << 18;
  const std::size_t of_trial =
      static_cast<std::size_t>(job.layers) * static_cast<std::size_t>(job.experts);
  return std::clamp(weights / of_trial / values, std::size_t{2}, std::size_t{32}) * values;
}

}  // namespace

std::vector<double> load_distribution(const RoutingJob& job) {
  if (!has_popular_loads(job)) return {};
  if (job.scores.kind == Kind::burst) return burst_loads(job);
  const std::size_t trials = trials_of(job);
  // Layers are independent, but for the training of an unknown routing: trials of one layer may
  // meet any of another.
  const std::size_t shifts = job.scores.kind == Kind::unknown ? 1 : 8;
  std::vector<double> sums(shifts * trials, 0.0);
  Trials drawn(job, trials);
  for (int layer = 0; layer < job.layers; ++layer) {
    const Column loads = drawn.layer();
    for (std::size_t shift = 0; shift < shifts; ++shift) {
      const std::size_t moved = shift * static_cast<std::size_t>(layer);
      for (std::size_t trial = 0; trial < trials; ++trial) {
        sums[shift * trials + trial] += loads[(trial + moved) % trials] / job.layers;
      }
    }
  }
  return in_quantiles(std::move(sums));
}

}  // namespace moesim::routing
