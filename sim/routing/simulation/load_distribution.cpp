#include "sim/routing/simulation/load_distribution.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <numbers>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "sim/base/random.hpp"
#include "sim/base/statistics.hpp"
#include "sim/routing/scores/unknown_popularity.hpp"
#include "sim/routing/simulation/busiest_load.hpp"
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

// Equally likely values of the log of Gamma(shape, 1), by adding up its density. Below 1 that has a
// pole: of x^shape it has none. The values themselves underflow at small shapes, their logs do not.
Column log_gamma_values(double shape) {
  constexpr std::size_t cells = 2 * fine;
  const double power = std::min(shape, 1.0);
  const double mode = std::max(shape - 1, 1e-9);
  const double last = std::pow(shape + 12 * std::sqrt(shape) + 30, power);
  const auto log_at = [&](std::size_t cell) {
    return std::log((static_cast<double>(cell) + 0.5) / double{cells} * last) / power;
  };
  Column sums(cells);
  double sum = 0;
  for (std::size_t cell = 0; cell < cells; ++cell) {
    const double log_x = log_at(cell);
    sum += std::exp((shape - power) * (log_x - std::log(mode)) - std::exp(log_x) + mode);
    sums[cell] = sum;
  }
  Column found(fine);
  std::size_t cell = 0;
  for (std::size_t value = 0; value < fine; ++value) {
    while (sums[cell] < (static_cast<double>(value) + 0.5) / double{fine} * sum) ++cell;
    found[value] = log_at(cell);
  }
  return found;
}

// Latin hypercubes of trials: every expert's popularity has one value in each stratum.
class Trials {
 public:
  Trials(const RoutingJob& job, std::size_t trials)
      : source_(job.scores),
        experts_(static_cast<std::size_t>(job.experts)),
        ranks_(job.expert_parallel),
        top_k_(job.router.top_k),
        trials_(trials),
        stream_(StreamKey{0, Purpose::load_distribution, 0, 0, 0}),
        values_(normal_values()),
        strata_(trials),
        offsets_(trials * experts_) {
    std::iota(strata_.begin(), strata_.end(), std::uint32_t{0});
    if (source_.kind == Kind::dirichlet) values_ = log_gamma_values(source_.parameter);
    if (source_.kind == Kind::unknown) draw_trainings();
  }

  // The loads of a layer.
  Column layer() {
    const bool is_log_share = source_.kind == Kind::zipf || source_.kind == Kind::dirichlet;
    if (source_.kind == Kind::zipf) {
      draw_zipf();
    } else {
      draw_experts();
    }
    Column found;
    for (std::size_t trial = 0; trial < trials_; ++trial) {
      const std::span<const float> offsets{&offsets_[trial * experts_], experts_};
      found.push_back(
          busiest_load(offsets, is_log_share ? Noise::gumbel : Noise::normal, ranks_, top_k_));
    }
    return found;
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
    if (source_.kind == Kind::dirichlet) return Column(trials_, 1.0);
    if (source_.kind != Kind::unknown) return Column(trials_, source_.parameter);
    Column found = column();
    for (std::size_t trial = 0; trial < trials_; ++trial) {
      found[trial] = std::exp(trainings_[trial] + among_layers_[trial] * found[trial]);
    }
    return found;
  }

  void draw_experts() {
    const Column widths = spreads();
    for (std::size_t expert = 0; expert < experts_; ++expert) {
      const Column drawn = column();
      for (std::size_t trial = 0; trial < trials_; ++trial) {
        offset(trial, expert) = static_cast<float>(widths[trial] * drawn[trial]);
      }
    }
  }

  void draw_zipf() {
    std::vector<float> offsets;
    for (std::size_t place = 1; place <= experts_; ++place) {
      offsets.push_back(
          static_cast<float>(-source_.parameter * std::log(static_cast<double>(place))));
    }
    for (std::size_t trial = 0; trial < trials_; ++trial) {
      shuffle(offsets, stream_);
      std::copy(offsets.begin(), offsets.end(), &offset(trial, 0));
    }
  }

  float& offset(std::size_t trial, std::size_t expert) {
    return offsets_[trial * experts_ + expert];
  }

  const ScoreSource& source_;
  std::size_t experts_;
  int ranks_, top_k_;
  std::size_t trials_;
  Stream stream_;
  Column values_;                      // equally likely, ascending
  std::vector<std::uint32_t> strata_;  // in a random order
  std::vector<float> offsets_;         // [trial, expert] of the layer
  Column trainings_, among_layers_;    // [trial], of unknown
};

// Two values: with a burst in all layers and without.
std::vector<double> burst_loads(const RoutingJob& job) {
  std::vector<float> offsets(static_cast<std::size_t>(job.experts), 0.0F);
  offsets.front() = static_cast<float>(std::log(job.scores.parameter));
  const double hot = busiest_load(offsets, Noise::gumbel, job.expert_parallel, job.router.top_k);
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

// The number of trials: as many as cost little, whatever the number of weights that a trial takes.
std::size_t trials_of(const RoutingJob& job) {
  constexpr std::size_t weights = std::size_t{1} << 18;
  const std::size_t of_trial =
      static_cast<std::size_t>(job.layers) * static_cast<std::size_t>(job.experts);
  return std::clamp(weights / of_trial / values, std::size_t{2}, std::size_t{32}) * values;
}

std::vector<double> distribution_of(const RoutingJob& job) {
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

// Jobs of one key have one distribution.
std::string key_of(const RoutingJob& job) {
  RoutingJob like;
  like.router.top_k = job.router.top_k;
  like.scores = job.scores;
  like.experts = job.experts;
  like.expert_parallel = like.gpus = job.expert_parallel;
  like.layers = job.layers;
  return fmt::format("{} of {}", job.router.top_k, like.logits_key());
}

}  // namespace

std::vector<double> load_distribution(const RoutingJob& job) {
  if (!has_popular_loads(job)) return {};
  constexpr std::size_t most_kept = 256;
  static std::mutex mutex;
  static std::map<std::string, std::vector<double>> kept;
  const std::string key = key_of(job);
  {
    const std::lock_guard lock(mutex);
    if (const auto found = kept.find(key); found != kept.end()) return found->second;
  }
  std::vector<double> found = distribution_of(job);
  const std::lock_guard lock(mutex);
  if (kept.size() >= most_kept) kept.clear();
  return kept.emplace(key, std::move(found)).first->second;
}

}  // namespace moesim::routing
