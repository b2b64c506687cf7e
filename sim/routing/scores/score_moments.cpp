#include "sim/routing/scores/score_moments.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace moesim::routing {

namespace {

constexpr int most_lags = 20;
constexpr std::size_t most_groups = 40;      // of the jackknife
constexpr std::size_t variation_groups = 8;  // of experts, for the variation of a layer

int lags_of(int steps) {
  if (steps >= least_steps_of_drift) return std::min(steps / 2, most_lags);
  return steps > 1 ? 1 : 0;
}

ScoreMoments moments_of(const CountTable& table, int layer, int expert, int lags) {
  const auto steps = static_cast<std::size_t>(table.steps);
  const auto ranks = static_cast<std::size_t>(table.ranks);
  const auto tokens = static_cast<double>(table.tokens);
  std::vector<double> shares(steps * ranks);
  std::vector<double> sums(steps, 0.0);
  ScoreMoments moments(lags);
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

// Least squares of level + variance phi^lag to `logs`[lag], lag >= 1, each lag weighted by its
// number of pairs of steps; phi is given. Neither the variance nor the excess of logs[0] over it is
// negative.
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
  const double most = most_autocorrelation(steps);
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

}  // namespace

double most_autocorrelation(int steps) { return std::exp(-1.0 / steps); }

void ScoreMoments::add(const ScoreMoments& other, double weight) {
  mean += other.mean * weight;
  alone += other.alone * weight;
  for (std::size_t lag = 0; lag < same.size(); ++lag) {
    same[lag] += other.same[lag] * weight;
    cross[lag] += other.cross[lag] * weight;
  }
}

MomentFit::MomentFit(const CountTable& table)
    : steps_(table.steps),
      ranks_(table.ranks),
      layers_(table.layers),
      experts_(table.experts),
      top_k_(table.top_k),
      lags_(lags_of(table.steps)),
      routes_(static_cast<double>(table.tokens) * table.top_k * table.steps * table.ranks) {
  for (int layer = 0; layer < layers_; ++layer) {
    for (int expert = 0; expert < experts_; ++expert) {
      ScoreMoments moments = moments_of(table, layer, expert, lags_);
      const double share = moments.mean / top_k_;
      units_.push_back({static_cast<std::size_t>(layer), share, std::move(moments)});
    }
  }
  groups_ = std::min(units_.size(), most_groups);
}

// Shares sum to 1 in each layer: of a variance v, an expert of share p shows v (1 - 2 p + sum p^2);
// experts weigh as p^2.
double MomentFit::seen(std::ptrdiff_t group) const {
  std::vector<double> whole(static_cast<std::size_t>(layers_), 0.0);
  std::vector<double> squared = whole;
  std::vector<double> cubed = whole;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (is_left_out(unit, group)) continue;
    const Unit& each = units_[unit];
    whole[each.layer] += each.share;
    squared[each.layer] += each.share * each.share;
    cubed[each.layer] += each.share * each.share * each.share;
  }
  double weights = 0;
  double visible = 0;
  for (std::size_t layer = 0; layer < whole.size(); ++layer) {
    if (whole[layer] <= 0) continue;
    const double squares = squared[layer] / (whole[layer] * whole[layer]);
    const double cubes = cubed[layer] / (whole[layer] * whole[layer] * whole[layer]);
    weights += squares;
    visible += squares * (1 + squares) - 2 * cubes;
  }
  return visible > 0 ? visible / weights : 1.0;
}

ScoreComponents MomentFit::without(std::ptrdiff_t group) const {
  ScoreMoments sums(lags_);
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    const Unit& each = units_[unit];
    if (is_left_out(unit, group) || each.share <= 0) continue;
    sums.add(each.moments, 1);
  }
  ScoreComponents parts;
  split(sums, parts);
  const double visible = seen(group);
  for (double* part :
       {&parts.drift, &parts.step, &parts.rank, &parts.rank_step, &parts.first_lag}) {
    *part /= visible;
  }
  double layers = 0;
  for (const double value : squares(parts, group)) {
    if (value <= 0) continue;  // no expert is left
    parts.spread += std::log(value);
    layers += 1;
  }
  if (layers > 0) parts.spread /= layers;
  return parts;
}

void MomentFit::split(const ScoreMoments& sums, ScoreComponents& parts) const {
  constexpr double tiny = std::numeric_limits<double>::min();
  const auto log_of = [&](double moment) {
    return std::log(std::max(moment, tiny) / std::max(sums.mean, tiny));
  };
  const double alone = log_of(sums.alone);
  if (steps_ == 1) {
    if (ranks_ > 1) parts.rank = alone - log_of(sums.cross[0]);
    return;
  }
  std::vector<double> logs;
  double weights = 0;
  for (std::size_t lag = 0; lag < sums.same.size(); ++lag) {
    logs.push_back(log_of(ranks_ > 1 ? sums.cross[lag] : sums.same[lag]));
    if (lag == 0 || ranks_ == 1) continue;
    const double weight = steps_ - static_cast<double>(lag);
    parts.rank += weight * (log_of(sums.same[lag]) - logs[lag]);
    weights += weight;
  }
  if (weights > 0) parts.rank /= weights;
  if (ranks_ == 1) logs[0] = alone;
  DriftLine line{logs[1], 0, 0};
  if (steps_ >= least_steps_of_drift) line = fit_drift(logs, steps_);
  parts.first_lag = logs[0] - logs[1];
  parts.drift = line.variance;
  parts.autocorrelation = line.autocorrelation;
  const double fresh = logs[0] - line.level - line.variance;
  (ranks_ == 1 ? parts.rank_step : parts.step) = fresh;
  if (ranks_ > 1) parts.rank_step = alone - logs[0] - parts.rank;
}

std::vector<double> MomentFit::lasting_squares(const ScoreComponents& parts) const {
  return squares(parts, -1);
}

// The mean of pi^2 over cells, against the square of the mean, whose counting noise is
// pi (1 - pi) / tokens; divided by what is visible, as in seen(). Without every
// variation_groups-th expert.
double MomentFit::variation(std::size_t layer, std::ptrdiff_t left_out) const {
  double alone = 0;
  double square = 0;
  double whole = 0;
  double squares = 0;
  double cubes = 0;
  for (std::size_t at = 0; at < static_cast<std::size_t>(experts_); ++at) {
    if (static_cast<std::ptrdiff_t>(at % variation_groups) == left_out) continue;
    const Unit& unit = units_[layer * static_cast<std::size_t>(experts_) + at];
    const double mean = unit.moments.mean;
    alone += unit.moments.alone;
    square += mean * mean - mean * (1 - mean) * top_k_ / routes_;
    whole += unit.share;
    squares += unit.share * unit.share;
    cubes += unit.share * unit.share * unit.share;
  }
  if (square <= 0 || alone <= 0 || whole <= 0) return 0;
  squares /= whole * whole;
  cubes /= whole * whole * whole;
  const double visible = 1 + squares - 2 * cubes / squares;
  return visible > 0.01 ? std::max(0.0, std::log(alone / square)) / visible : 0.0;
}

std::vector<MomentFit::Variation> MomentFit::variations() const {
  std::vector<Variation> found;
  for (std::size_t layer = 0; layer < static_cast<std::size_t>(layers_); ++layer) {
    Variation& of_layer = found.emplace_back();
    of_layer.value = variation(layer, -1);
    const auto parts = static_cast<std::ptrdiff_t>(
        std::min<std::size_t>(variation_groups, static_cast<std::size_t>(experts_)));
    double mean = 0;
    double square = 0;
    for (std::ptrdiff_t part = 0; part < parts; ++part) {
      const double without = variation(layer, part);
      mean += without / static_cast<double>(parts);
      square += without * without / static_cast<double>(parts);
    }
    of_layer.error =
        std::sqrt(std::max(0.0, square - mean * mean) * static_cast<double>(parts - 1));
    for (const Unit& unit : units_) {
      if (unit.layer == layer) of_layer.weight += unit.share * unit.share;
    }
  }
  return found;
}

// A mean share p squared has the mean p^2 times that of exp(covariance) over all pairs of cells,
// plus the noise p (1 - k p) / routes.
std::vector<double> MomentFit::squares(const ScoreComponents& parts, std::ptrdiff_t group) const {
  const double visible = seen(group);
  const auto added_to = [&](std::size_t layer) {
    const double times = visible * (scale_.empty() ? 1.0 : scale_[layer]);
    const auto shown = [&](double part) { return std::max(0.0, part) * times; };
    double added = 0;
    for (int lag = 0; lag < steps_; ++lag) {
      const double pairs = lag == 0 ? steps_ : 2.0 * (steps_ - lag);
      const double common = shown(parts.drift) * std::pow(parts.autocorrelation, lag) +
                            (lag == 0 ? shown(parts.step) : 0.0);
      const double own = common + shown(parts.rank) + (lag == 0 ? shown(parts.rank_step) : 0.0);
      added += pairs * (std::exp(own) + (ranks_ - 1) * std::exp(common)) / ranks_;
    }
    return added / (static_cast<double>(steps_) * steps_);
  };
  struct Sums {
    double shares = 0, squares = 0, experts = 0;
  };
  std::vector<Sums> layers(static_cast<std::size_t>(layers_));
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (is_left_out(unit, group)) continue;
    Sums& layer = layers[units_[unit].layer];
    layer.shares += units_[unit].share;
    layer.squares += units_[unit].share * units_[unit].share;
    layer.experts += 1;
  }
  std::vector<double> result;
  for (const Sums& layer : layers) {
    const double noise = (layer.shares - top_k_ * layer.squares) / routes_;
    const double lasting = std::max(0.0, layer.squares - noise) / added_to(result.size());
    result.push_back(layer.shares <= 0
                         ? 0.0
                         : std::max(1.0, layer.experts * lasting / (layer.shares * layer.shares)));
  }
  return result;
}

std::vector<std::vector<double>> MomentFit::shares() const {
  std::vector<std::vector<double>> result(static_cast<std::size_t>(layers_));
  for (const Unit& unit : units_) result[unit.layer].push_back(unit.share);
  return result;
}

}  // namespace moesim::routing
