#include "sim/routing/score_fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "sim/base/error.hpp"

namespace moesim::routing {

namespace {

constexpr int least_steps_of_drift = 4;
constexpr int most_lags = 20;
constexpr double least_autocorrelation = 0.3;
constexpr std::size_t most_groups = 40;  // of the jackknife

// Moments of inclusion probabilities, of one expert or summed over experts.
struct Moments {
  double mean = 0;
  double alone = 0;           // pi^2 of one step and rank
  std::vector<double> same;   // [lag] of one rank; lag 0 unused
  std::vector<double> cross;  // [lag] of two ranks

  explicit Moments(int lags)
      : same(static_cast<std::size_t>(lags) + 1), cross(static_cast<std::size_t>(lags) + 1) {}

  void add(const Moments& other, double weight) {
    mean += other.mean * weight;
    alone += other.alone * weight;
    for (std::size_t lag = 0; lag < same.size(); ++lag) {
      same[lag] += other.same[lag] * weight;
      cross[lag] += other.cross[lag] * weight;
    }
  }
};

// Variances as the moments show them, before the sum of shares is made up for.
struct Components {
  double spread = 0, drift = 0, autocorrelation = 0, step = 0, rank = 0, rank_step = 0;
};

struct Unit {
  std::size_t layer = 0;
  double share = 0;  // of the layer's routes, all steps and ranks
  Moments moments;
};

int lags_of(const CountTable& table) {
  if (table.steps >= least_steps_of_drift) return std::min(table.steps / 2, most_lags);
  return table.steps > 1 ? 1 : 0;
}

Moments moments_of(const CountTable& table, int layer, int expert, int lags) {
  const auto steps = static_cast<std::size_t>(table.steps);
  const auto ranks = static_cast<std::size_t>(table.ranks);
  const auto tokens = static_cast<double>(table.tokens);
  std::vector<double> shares(steps * ranks);
  std::vector<double> sums(steps, 0.0);
  Moments moments(lags);
  for (std::size_t step = 0; step < steps; ++step) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto count = static_cast<double>(
          table.at(static_cast<int>(step), static_cast<int>(rank), layer, expert));
      const double share = count / tokens;
      shares[step * ranks + rank] = share;
      sums[step] += share;
      moments.mean += share;
      moments.alone += tokens > 1 ? share * (count - 1) / (tokens - 1) : 0.0;
    }
  }
  const auto cells = static_cast<double>(steps * ranks);
  moments.mean /= cells;
  moments.alone /= cells;
  for (std::size_t lag = 0; lag <= static_cast<std::size_t>(lags); ++lag) {
    double same = 0;
    double all = 0;
    for (std::size_t step = 0; step + lag < steps; ++step) {
      all += sums[step] * sums[step + lag];
      const double* early = &shares[step * ranks];
      const double* late = &shares[(step + lag) * ranks];
      same += std::inner_product(early, early + ranks, late, 0.0);
    }
    const auto pairs = static_cast<double>(steps - lag) * static_cast<double>(ranks);
    moments.same[lag] = same / pairs;
    if (ranks > 1) moments.cross[lag] = (all - same) / (pairs * static_cast<double>(ranks - 1));
  }
  return moments;
}

struct DriftLine {
  double level = 0, variance = 0, autocorrelation = 0;
};

// Least squares of level + variance phi^lag to `logs`[lag], lag >= 1, each lag weighing as its
// pairs of steps; phi is given. Neither the variance nor what logs[0] has beyond it is negative.
class DriftFit {
 public:
  DriftFit(const std::vector<double>& logs, int steps) : logs_(logs), steps_(steps) {}

  DriftLine at(double phi) const {
    double weights = 0, x_sum = 0, y_sum = 0, xx = 0, xy = 0, rise = 0, run = 0;
    for (std::size_t lag = 1; lag < logs_.size(); ++lag) {
      const double weight = weight_of(lag);
      const double x = std::pow(phi, static_cast<double>(lag));
      weights += weight;
      x_sum += weight * x;
      y_sum += weight * logs_[lag];
      xx += weight * x * x;
      xy += weight * x * logs_[lag];
      rise += weight * (1 - x) * (logs_[0] - logs_[lag]);
      run += weight * (1 - x) * (1 - x);
    }
    const double bend = xx - x_sum * x_sum / weights;
    const double variance = bend > 0 ? std::max(0.0, (xy - x_sum * y_sum / weights) / bend) : 0.0;
    const double level = (y_sum - variance * x_sum) / weights;
    if (variance == 0 || level + variance <= logs_[0]) return {level, variance, phi};
    const double tied = std::max(0.0, rise / run);  // through logs[0]
    return {logs_[0] - tied, tied, phi};
  }

  double squares(const DriftLine& line) const {
    double sum = 0;
    for (std::size_t lag = 1; lag < logs_.size(); ++lag) {
      const double fitted =
          line.level + line.variance * std::pow(line.autocorrelation, static_cast<double>(lag));
      sum += weight_of(lag) * (logs_[lag] - fitted) * (logs_[lag] - fitted);
    }
    return sum;
  }

 private:
  double weight_of(std::size_t lag) const { return steps_ - static_cast<double>(lag); }

  const std::vector<double>& logs_;
  int steps_;
};

DriftLine fit_drift(const std::vector<double>& logs, int steps) {
  const DriftFit fit(logs, steps);
  const double most = std::exp(-1.0 / steps);
  constexpr int places = 300;
  DriftLine best = fit.at(least_autocorrelation);
  for (int place = 1; place <= places; ++place) {
    const DriftLine line =
        fit.at(least_autocorrelation + (most - least_autocorrelation) * place / places);
    if (fit.squares(line) < fit.squares(best)) best = line;
  }
  if (best.variance == 0) best.autocorrelation = 0;
  return best;
}

// The mean over pairs of cells of exp(their covariance): what the terms add to the square of a mean
// over all steps and ranks.
double inflation(const Components& parts, const CountTable& table) {
  const double ranks = table.ranks;
  double sum = 0;
  for (int lag = 0; lag < table.steps; ++lag) {
    const double pairs = lag == 0 ? table.steps : 2.0 * (table.steps - lag);
    const double common =
        parts.drift * std::pow(parts.autocorrelation, lag) + (lag == 0 ? parts.step : 0.0);
    const double same = common + parts.rank + (lag == 0 ? parts.rank_step : 0.0);
    sum += pairs * (std::exp(same) + (ranks - 1) * std::exp(common)) / ranks;
  }
  return sum / (static_cast<double>(table.steps) * table.steps);
}

// Sums of squared shares per layer, over the units that are there and the shares among them.
struct LayerSquares {
  double shares = 0, squares = 0, experts = 0;
  double noisy(double routes, int top_k) const {
    // Var of a mean share: p (1 - k p) / routes.
    const double noise = (shares - top_k * squares) / routes;
    return std::max(squares - noise, 0.0) / (shares * shares);
  }
};

class Fit {
 public:
  explicit Fit(const CountTable& table)
      : table_(table), lags_(lags_of(table)), groups_(0), routes_(0) {
    routes_ = static_cast<double>(table.tokens) * table.top_k * table.steps * table.ranks;
    for (int layer = 0; layer < table.layers; ++layer) {
      for (int expert = 0; expert < table.experts; ++expert) {
        Moments moments = moments_of(table, layer, expert, lags_);
        const double share = moments.mean / table.top_k;
        units_.push_back({static_cast<std::size_t>(layer), share, std::move(moments)});
      }
    }
    groups_ = std::min(units_.size(), most_groups);
  }

  // Left out: units of one group, or none (-1).
  Components components(std::ptrdiff_t left_out) const {
    Moments sums(lags_);
    double shares = 0, squares = 0;
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      const Unit& each = units_[unit];
      if (static_cast<std::ptrdiff_t>(unit % groups_) == left_out || each.share <= 0) continue;
      sums.add(each.moments, 1 / each.moments.mean);
      shares += each.share;
      squares += each.share * each.share;
    }
    Components parts;
    split(sums, parts);
    // Shares sum to 1 in each layer: of a variance v there is v (1 - sum p^2) to be seen.
    const double seen = shares > 0 ? 1 - squares / shares : 1.0;
    for (double* part : {&parts.drift, &parts.step, &parts.rank, &parts.rank_step}) *part /= seen;
    const std::vector<double> of_layer = square_sums(parts, seen, left_out);
    double known = 0;
    for (const double value : of_layer) {
      if (value <= 0) continue;
      parts.spread += std::log(value);
      known += 1;
    }
    if (known > 0) parts.spread /= known;
    return parts;
  }

  // [layer] E sum p^2 of lasting popularity, at least 1.
  std::vector<double> square_sums(const Components& parts, double seen,
                                  std::ptrdiff_t left_out) const {
    std::vector<LayerSquares> sums(static_cast<std::size_t>(table_.layers));
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      if (static_cast<std::ptrdiff_t>(unit % groups_) == left_out) continue;
      LayerSquares& layer = sums[units_[unit].layer];
      layer.shares += units_[unit].share;
      layer.squares += units_[unit].share * units_[unit].share;
      layer.experts += 1;
    }
    Components visible = parts;
    for (double* part : {&visible.drift, &visible.step, &visible.rank, &visible.rank_step}) {
      *part = std::max(0.0, *part * seen);
    }
    const double added = inflation(visible, table_);
    std::vector<double> result;
    for (const LayerSquares& layer : sums) {
      if (layer.shares <= 0) {
        result.push_back(0);
        continue;
      }
      result.push_back(std::max(1.0, layer.experts * layer.noisy(routes_, table_.top_k) / added));
    }
    return result;
  }

  double seen() const {
    double squares = 0;
    for (const Unit& unit : units_) squares += unit.share * unit.share;
    return 1 - squares / table_.layers;
  }

  std::size_t groups() const { return groups_; }
  double routes() const { return routes_; }
  const std::vector<Unit>& units() const { return units_; }

 private:
  void split(const Moments& sums, Components& parts) const {
    const auto log_of = [&](double moment) {
      return std::log(std::max(moment, 1e-300) / std::max(sums.mean, 1e-300));
    };
    const double alone = log_of(sums.alone);
    if (table_.steps == 1) {
      if (table_.ranks > 1) parts.rank = alone - log_of(sums.cross[0]);
      return;
    }
    std::vector<double> logs;
    double weights = 0;
    for (std::size_t lag = 0; lag <= static_cast<std::size_t>(lags_); ++lag) {
      logs.push_back(log_of(table_.ranks > 1 ? sums.cross[lag] : sums.same[lag]));
      if (lag == 0 || table_.ranks == 1) continue;
      const double weight = table_.steps - static_cast<double>(lag);
      parts.rank += weight * (log_of(sums.same[lag]) - logs[lag]);
      weights += weight;
    }
    if (weights > 0) parts.rank /= weights;
    if (table_.ranks == 1) logs[0] = alone;
    DriftLine line{logs[1], 0, 0};
    if (table_.steps >= least_steps_of_drift) line = fit_drift(logs, table_.steps);
    parts.drift = line.variance;
    parts.autocorrelation = line.autocorrelation;
    if (table_.ranks == 1) {
      parts.rank_step = alone - line.level - line.variance;
      return;
    }
    parts.step = logs[0] - line.level - line.variance;
    parts.rank_step = alone - logs[0] - parts.rank;
  }

  const CountTable& table_;
  int lags_;
  std::size_t groups_;
  double routes_;  // of one layer, all steps and ranks
  std::vector<Unit> units_;
};

void check_table(const CountTable& table, const std::string& source) {
  const auto rows = static_cast<std::size_t>(table.steps) * static_cast<std::size_t>(table.ranks) *
                    static_cast<std::size_t>(table.layers);
  const auto experts = static_cast<std::size_t>(table.experts);
  if (table.counts.size() != rows * experts) {
    throw UsageError(fmt::format("{}: {} counts for {} rows of {} experts", source,
                                 table.counts.size(), rows, experts));
  }
  if (table.top_k < 1 || table.top_k > table.experts) {
    throw UsageError(
        fmt::format("{}: {} of {} experts cannot be chosen", source, table.top_k, table.experts));
  }
  for (std::size_t row = 0; row < rows; ++row) {
    const auto begin = table.counts.begin() + static_cast<std::ptrdiff_t>(row * experts);
    const std::int64_t sum =
        std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(experts), std::int64_t{0});
    if (sum == table.tokens * table.top_k) continue;
    const auto layers = static_cast<std::size_t>(table.layers);
    const auto ranks = static_cast<std::size_t>(table.ranks);
    throw UsageError(fmt::format(
        "{}: the counts of step {}, rank {}, layer {} sum to {}, not to {} tokens times {}", source,
        row / layers / ranks, row / layers % ranks, row % layers, sum, table.tokens, table.top_k));
  }
}

// p^exponent, normalised.
std::vector<double> flattened(const std::vector<double>& shares, double exponent) {
  std::vector<double> result;
  for (const double share : shares) result.push_back(std::pow(share, exponent));
  const double whole = std::accumulate(result.begin(), result.end(), 0.0);
  for (double& share : result) share /= whole;
  return result;
}

// The exponent up to 1 at which E sum p^2 is `wanted`; it rises with the exponent.
std::vector<double> shrunk(const std::vector<double>& shares, double wanted) {
  double low = 0;
  double high = 1;
  for (int halving = 0; halving < 50; ++halving) {
    const double middle = (low + high) / 2;
    const std::vector<double> tried = flattened(shares, middle);
    const double squares = std::inner_product(tried.begin(), tried.end(), tried.begin(), 0.0);
    (squares * static_cast<double>(shares.size()) < wanted ? low : high) = middle;
  }
  return flattened(shares, high);
}

// A figure of the whole, and its standard error from the same figure with one group left out.
Estimate jackknife(const Components& whole, const std::vector<Components>& without,
                   double Components::*part) {
  const auto count = static_cast<double>(without.size());
  double centre = 0;
  for (const Components& parts : without) centre += parts.*part / count;
  double squares = 0;
  for (const Components& parts : without) squares += std::pow(parts.*part - centre, 2);
  return {std::max(0.0, whole.*part), std::sqrt((count - 1) / count * squares)};
}

}  // namespace

ScoreModel fit_score_model(const CountTable& table, const std::string& source) {
  check_table(table, source);
  const Fit fit(table);
  const Components whole = fit.components(-1);
  std::vector<Components> without;
  for (std::size_t group = 0; group < fit.groups(); ++group) {
    without.push_back(fit.components(static_cast<std::ptrdiff_t>(group)));
  }
  ScoreModel model;
  model.name = source;
  model.source = source;
  model.steps = table.steps;
  model.ranks = table.ranks;
  model.tokens = table.tokens;
  model.experts = table.experts;
  model.top_k = table.top_k;
  model.spread = jackknife(whole, without, &Components::spread);
  if (table.steps >= least_steps_of_drift) {
    model.drift = jackknife(whole, without, &Components::drift);
    model.autocorrelation = jackknife(whole, without, &Components::autocorrelation);
  }
  if (table.ranks > 1) model.rank = jackknife(whole, without, &Components::rank);
  if (table.steps > 1) model.rank_step = jackknife(whole, without, &Components::rank_step);
  if (table.steps > 1 && table.ranks > 1) model.step = jackknife(whole, without, &Components::step);
  const std::vector<double> squares = fit.square_sums(whole, fit.seen(), -1);
  for (int layer = 0; layer < table.layers; ++layer) {
    std::vector<double> shares;
    for (int expert = 0; expert < table.experts; ++expert) {
      const std::size_t unit =
          static_cast<std::size_t>(layer) * static_cast<std::size_t>(table.experts) +
          static_cast<std::size_t>(expert);
      shares.push_back(std::max(fit.units()[unit].share, 0.5 / fit.routes()));
    }
    model.popularity.push_back(shrunk(shares, squares[static_cast<std::size_t>(layer)]));
  }
  return model;
}

}  // namespace moesim::routing
