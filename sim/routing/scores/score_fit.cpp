#include "sim/routing/scores/score_fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/routing/scores/token_type_fit.hpp"

namespace moesim::routing {

namespace {

using Component = double ScoreComponents::*;
constexpr Component variances[] = {&ScoreComponents::spread, &ScoreComponents::drift,
                                   &ScoreComponents::step, &ScoreComponents::rank,
                                   &ScoreComponents::rank_step};

constexpr double least_variance = 1e-9;  // below this there is only rounding error
constexpr double least_layer_variation = 1e-4;

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

// The power of the shares for which E sum p^2 is `wanted`; the sum increases with the exponent. No
// correction needs an exponent above 3.
std::vector<double> with_squares(const std::vector<double>& shares, double wanted) {
  double low = 0;
  double high = 3;
  for (int halving = 0; halving < 50; ++halving) {
    const double middle = (low + high) / 2;
    const std::vector<double> tried = flattened(shares, middle);
    const double squares = std::inner_product(tried.begin(), tried.end(), tried.begin(), 0.0);
    (squares * static_cast<double>(shares.size()) < wanted ? low : high) = middle;
  }
  return flattened(shares, low);
}

// [layer] The variation of each layer relative to the mean, as far as sampling does not explain the
// difference of their logarithms (empirical Bayes); empty if it explains all.
std::vector<double> relative_variations(const std::vector<MomentFit::Variation>& found) {
  if (found.size() < 2) return {};
  std::vector<double> logs, errors;
  double mean = 0;
  for (const MomentFit::Variation& layer : found) {
    const double value = std::max(layer.value, least_layer_variation);
    logs.push_back(std::log(value));
    errors.push_back(std::min(1.0, layer.error / value));
    mean += logs.back() / static_cast<double>(found.size());
  }
  double own = 0;
  for (std::size_t layer = 0; layer < found.size(); ++layer) {
    own += (logs[layer] - mean) * (logs[layer] - mean) - errors[layer] * errors[layer];
  }
  own /= static_cast<double>(found.size() - 1);
  if (own <= 0) return {};
  std::vector<double> scale;
  double weights = 0;
  double sum = 0;
  for (std::size_t layer = 0; layer < found.size(); ++layer) {
    const double kept = own / (own + errors[layer] * errors[layer]);
    scale.push_back(std::exp(kept * (logs[layer] - mean)));
    weights += found[layer].weight;
    sum += found[layer].weight * scale.back();
  }
  for (double& of_layer : scale) of_layer *= weights / sum;
  return scale;
}

// The figures of the candidate model. The spread of each layer is its first estimate times the
// change of the mean over layers.
class Candidate {
 public:
  // `scale` [layer]: the first estimate of ScoreModel::layer_scale, which `fit` has too.
  Candidate(const CountTable& table, const MomentFit& fit, std::vector<double> scale)
      : seen_(fit.components()),
        parts_(seen_),
        shares_(fit.shares()),
        variations_(fit.variations()),
        scale_(std::move(scale)),
        wanted_(scale_) {
    for (Component part : variances) {
      if (parts_.*part < least_variance) parts_.*part = 0;
    }
    squares_ = fit.lasting_squares(parts_);
    seen_squares_ = fit.lasting_squares(seen_);
    moved_.assign(squares_.size(), 1.0);
    for (std::vector<double>& layer : shares_) {
      for (double& share : layer) share = std::max(share, 0.5 / fit.routes());
    }
    model_.steps = table.steps;
    model_.ranks = table.ranks;
    model_.tokens = table.tokens;
    model_.experts = table.experts;
    model_.top_k = table.top_k;
    update();
  }

  // `generated`: the average over tables generated by this model, in place of the observed figures.
  struct Layers {
    std::vector<double> variations, squares;  // [layer], means over tables as well
  };
  void move(const ScoreComponents& generated, const Layers& layers) {
    for (Component part : variances) {
      double& figure = parts_.*part;
      if (figure <= 0 || generated.*part <= 0) continue;
      const double wanted = std::max(0.0, seen_.*part);
      const double most = most_correction * wanted;
      figure = std::min(most, figure * std::clamp(wanted / generated.*part, 0.5, 2.0));
    }
    if (parts_.drift > 0) {
      parts_.autocorrelation =
          std::clamp(parts_.autocorrelation + seen_.autocorrelation - generated.autocorrelation,
                     least_autocorrelation, most_autocorrelation(model_.steps));
    }
    move_scale(layers.variations);
    move_squares(layers.squares);
    update();
  }

  const ScoreModel& model() const { return model_; }
  const ScoreComponents& seen() const { return seen_; }
  const ScoreComponents& parts() const { return parts_; }

 private:
  // A larger change is not a small correction: a short trace that does not converge.
  static constexpr double most_correction = 1.3;
  static constexpr double most_scale = 2;

  // Relative to the mean of the layers, which the variances account for.
  void move_scale(const std::vector<double>& variations) {
    double wanted = 0;
    double generated = 0;
    for (std::size_t layer = 0; layer < scale_.size(); ++layer) {
      wanted += variations_[layer].weight * wanted_[layer];
      generated += variations_[layer].weight * variations[layer];
    }
    if (wanted <= 0 || generated <= 0) return;
    for (std::size_t layer = 0; layer < scale_.size(); ++layer) {
      const double found = variations[layer] / generated * wanted;
      if (found <= 0) continue;
      const double moved = scale_[layer] * std::clamp(wanted_[layer] / found, 0.5, 2.0);
      scale_[layer] = std::clamp(moved, wanted_[layer] / most_scale, wanted_[layer] * most_scale);
    }
  }

  // Layers of different variation have spreads of their own: each is corrected by itself.
  void move_squares(const std::vector<double>& generated) {
    for (std::size_t layer = 0; layer < scale_.size(); ++layer) {
      const double wanted = std::log(seen_squares_[layer]);
      const double found = std::log(std::max(1.0, generated[layer]));
      if (wanted <= 0 || found <= 0) continue;
      moved_[layer] =
          std::min(most_correction, moved_[layer] * std::clamp(wanted / found, 0.5, 2.0));
    }
  }

  void update() {
    model_.layer_scale = scale_;
    model_.drift = FittedValue{parts_.drift, 0};
    model_.autocorrelation = FittedValue{parts_.autocorrelation, 0};
    model_.step = FittedValue{parts_.step, 0};
    model_.rank = FittedValue{parts_.rank, 0};
    model_.rank_step = FittedValue{parts_.rank_step, 0};
    const double moved = seen_.spread > 0 ? parts_.spread / seen_.spread : 1.0;
    model_.popularity.clear();
    for (std::size_t layer = 0; layer < shares_.size(); ++layer) {
      model_.popularity.push_back(with_squares(
          shares_[layer], std::pow(squares_[layer], scale_.empty() ? moved : moved_[layer])));
    }
  }

  ScoreComponents seen_, parts_;
  std::vector<std::vector<double>> shares_;
  std::vector<double> squares_;
  std::vector<MomentFit::Variation> variations_;
  std::vector<double> scale_, wanted_;        // [layer], or none
  std::vector<double> seen_squares_, moved_;  // [layer]
  ScoreModel model_;
};

// Counts generated by a model, of so many tokens that they have no counting noise.
CountTable expected_table(const ScoreModel& model, int ranks, std::uint64_t seed) {
  CountTable table;
  table.steps = model.steps;
  table.ranks = ranks;
  table.layers = static_cast<int>(model.popularity.size());
  table.experts = model.experts;
  table.top_k = model.top_k;
  table.tokens = std::int64_t{1} << 40;
  const auto layers = static_cast<std::size_t>(table.layers);
  const auto experts = static_cast<std::size_t>(table.experts);
  table.counts.resize(static_cast<std::size_t>(table.steps) * static_cast<std::size_t>(ranks) *
                      layers * experts);
  for (int step = 0; step < table.steps; ++step) {
    for (std::size_t layer = 0; layer < layers; ++layer) {
      const ScoreDraw draw(model, model.experts, seed, static_cast<std::uint32_t>(step),
                           static_cast<std::uint32_t>(layer));
      for (int rank = 0; rank < ranks; ++rank) {
        const std::vector<double> inclusions =
            draw.gpu_inclusions(static_cast<std::uint32_t>(rank));
        const std::size_t row = (static_cast<std::size_t>(step) * static_cast<std::size_t>(ranks) +
                                 static_cast<std::size_t>(rank)) *
                                    layers +
                                layer;
        for (std::size_t expert = 0; expert < experts; ++expert) {
          table.counts[row * experts + expert] =
              std::llround(inclusions[expert] * static_cast<double>(table.tokens));
        }
      }
    }
  }
  return table;
}

constexpr int most_simulations = 8;
constexpr int rounds = 3;
constexpr double most_cells = 1e6;  // of one round
constexpr int most_simulated_ranks = 16;

// Changes the candidate until its generated tables have the figures of the counts. All rounds use
// the same random numbers, so that the iteration converges.
void calibrate(Candidate& candidate) {
  const ScoreModel& model = candidate.model();
  const int ranks = std::min(model.ranks, most_simulated_ranks);
  const double cells = static_cast<double>(model.steps) * ranks *
                       static_cast<double>(model.popularity.size()) * model.experts;
  const int simulations = std::clamp(static_cast<int>(most_cells / cells), 1, most_simulations);
  for (int round = 0; round < rounds; ++round) {
    ScoreComponents mean;
    Candidate::Layers layers;
    layers.variations.assign(model.popularity.size(), 0.0);
    layers.squares.assign(model.popularity.size(), 0.0);
    for (int simulation = 1; simulation <= simulations; ++simulation) {
      MomentFit fit(expected_table(model, ranks, static_cast<std::uint64_t>(simulation)));
      fit.scale_layers(model.layer_scale);
      const ScoreComponents generated = fit.components();
      const std::vector<MomentFit::Variation> of_layers = fit.variations();
      const std::vector<double> squares = fit.lasting_squares(generated);
      for (std::size_t layer = 0; layer < squares.size(); ++layer) {
        layers.variations[layer] += of_layers[layer].value / simulations;
        layers.squares[layer] += squares[layer] / simulations;
      }
      for (Component part : variances) mean.*part += generated.*part / simulations;
      mean.autocorrelation += generated.autocorrelation / simulations;
    }
    candidate.move(mean, layers);
  }
}

double jackknife(const std::vector<ScoreComponents>& without, Component part) {
  const auto count = static_cast<double>(without.size());
  double centre = 0;
  for (const ScoreComponents& parts : without) centre += parts.*part / count;
  double squares = 0;
  for (const ScoreComponents& parts : without) squares += std::pow(parts.*part - centre, 2);
  return std::sqrt((count - 1) / count * squares);
}

// Counts the top_k largest logits of each token.
void count_logits(std::span<const float> logits, int top_k, std::span<std::int64_t> counts) {
  const std::size_t experts = counts.size();
  std::vector<std::size_t> order(experts);
  for (std::size_t first = 0; first < logits.size(); first += experts) {
    const std::span<const float> row = logits.subspan(first, experts);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::partial_sort(order.begin(), order.begin() + top_k, order.end(),
                      [&](std::size_t one, std::size_t other) {
                        return row[one] != row[other] ? row[one] > row[other] : one < other;
                      });
    for (int choice = 0; choice < top_k; ++choice) {
      ++counts[order[static_cast<std::size_t>(choice)]];
    }
  }
}

}  // namespace

CountTable count_table(const Trace& trace) {
  if (trace.per() == Trace::Per::rank) {
    throw UsageError(
        fmt::format("{}: it counts rows per receiving GPU: scores are fitted to counts per expert",
                    trace.file()));
  }
  const TraceShape& shape = trace.shape();
  CountTable table{shape.steps,  shape.ranks, shape.layers, shape.experts, shape.top_k,
                   shape.tokens, {}};
  std::vector<std::int64_t> row;
  for (int step = 0; step < shape.steps; ++step) {
    for (int rank = 0; rank < shape.ranks; ++rank) {
      for (int layer = 0; layer < shape.layers; ++layer) {
        const std::span<const std::int64_t> counts = trace.counts(step, rank, layer);
        row.assign(static_cast<std::size_t>(shape.experts), 0);
        std::copy(counts.begin(), counts.end(), row.begin());
        for (const std::uint16_t expert : trace.choices(step, rank, layer)) ++row[expert];
        count_logits(trace.logits(step, rank, layer), shape.top_k, row);
        table.counts.insert(table.counts.end(), row.begin(), row.end());
      }
    }
  }
  return table;
}

ScoreModel fit_score_model(const CountTable& table, const std::string& source) {
  check_table(table, source);
  MomentFit fit(table);
  std::vector<double> scale;
  if (table.steps > 1 || table.ranks > 1) scale = relative_variations(fit.variations());
  fit.scale_layers(scale);
  Candidate candidate(table, fit, std::move(scale));
  if (table.steps > 1 || table.ranks > 1) calibrate(candidate);
  std::vector<ScoreComponents> without;
  for (std::size_t group = 0; group < fit.groups(); ++group) {
    without.push_back(fit.without(static_cast<std::ptrdiff_t>(group)));
  }
  // An error is scaled with its figure.
  const auto estimate = [&](Component part) {
    const double seen = candidate.seen().*part;
    const double value = candidate.parts().*part;
    return FittedValue{value,
                       jackknife(without, part) * (seen > 0 && value > 0 ? value / seen : 1)};
  };
  // A figure that is 0 in all groups has no observed error; the moment that would show it has one.
  const double unbound = jackknife(without, &ScoreComponents::first_lag);
  ScoreModel model = candidate.model();
  model.name = source;
  model.source = source;
  model.spread = estimate(&ScoreComponents::spread);
  model.drift = model.autocorrelation = model.step = model.rank = model.rank_step = std::nullopt;
  if (table.steps >= least_steps_of_drift) {
    model.drift = estimate(&ScoreComponents::drift);
    if (model.drift->value == 0) model.drift->error = unbound;
    model.autocorrelation = estimate(&ScoreComponents::autocorrelation);
    // At a bound all groups agree and give no information: the error is that of any value between
    // the bounds.
    const double least = least_autocorrelation;
    const double most = most_autocorrelation(table.steps);
    const double seen = candidate.seen().autocorrelation;
    if (seen <= least || seen >= most) {
      model.autocorrelation->error =
          std::max(model.autocorrelation->error, (most - least) / std::sqrt(12.0));
    }
  }
  if (table.ranks > 1) model.rank = estimate(&ScoreComponents::rank);
  if (table.steps > 1) model.rank_step = estimate(&ScoreComponents::rank_step);
  if (table.steps > 1 && table.ranks > 1) {
    model.step = estimate(&ScoreComponents::step);
    if (model.step->value == 0) model.step->error = unbound;
  }
  return model;
}

ScoreModel fit_score_model(const Trace& trace, const std::string& source) {
  ScoreModel model = fit_score_model(count_table(trace), source);
  model.token_type = fit_token_types(model, trace);
  return model;
}

}  // namespace moesim::routing
