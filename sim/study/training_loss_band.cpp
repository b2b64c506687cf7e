#include "sim/study/training_loss_band.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <vector>

#include "sim/base/numbers.hpp"
#include "sim/base/statistics.hpp"
#include "sim/study/sweep/counted_loss.hpp"
#include "sim/study/sweep/unknown_weights.hpp"
#include "sim/training/drawn/block_routing.hpp"
#include "sim/training/drawn/further_losses.hpp"
#include "sim/uncertainty/statistics/student_t.hpp"

namespace moesim::study {
namespace {

using routing::ScoreSource;
using training::FurtherLosses;
using uncertainty::LossBand;

constexpr double level = 0.9;
constexpr int fewest_steps = 4;
constexpr int most_steps = 16;
constexpr int enough_degrees = 64;

// One draw of the source is common to all layers of a step. So is that of an unknown popularity,
// which no training step takes.
bool joins_layers(const ScoreSource& scores) {
  return scores.kind == ScoreSource::Kind::burst || scores.kind == ScoreSource::Kind::scores;
}

// Of a trace drawn per layer: each recorded step has a loss.
std::optional<LossBand> recorded_band(const training::RoutingFigures& figures) {
  const std::size_t steps = figures.taken_steps.size();
  const std::size_t layers = figures.layer_losses.size() / steps;
  std::vector<double> losses(steps, 0.0);
  for (std::size_t at = 0; at < figures.layer_losses.size(); ++at) {
    losses[at % steps] += figures.layer_losses[at] / static_cast<double>(layers);
  }
  return uncertainty::loss_band(losses);
}

LossBand joint_band(double own, const FurtherLosses& further) {
  std::vector<double> losses = {own};
  for (const std::vector<double>& layers : further.of_layers) losses.push_back(mean(layers));
  LossBand band = *uncertainty::loss_band(losses);
  band.error *= std::sqrt(static_cast<double>(losses.size()));  // of one step
  return band;
}

// The variance between steps, mean over layers.
double variance_between(const std::vector<std::vector<double>>& steps) {
  const auto count = static_cast<double>(steps.size());
  const std::size_t layers = steps.front().size();
  double squares = 0;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    double middle = 0;
    for (const std::vector<double>& step : steps) middle += step[layer] / count;
    for (const std::vector<double>& step : steps) squares += square(step[layer] - middle);
  }
  return squares / (count - 1) / static_cast<double>(layers);
}

// mean +- t `deviation` of the arcsine of the root of a loss; `error`: the deviation of one step.
LossBand arcsine_band(double middle, double deviation, double degrees, std::size_t steps,
                      double error) {
  LossBand band;
  band.steps = steps;
  band.error = error;
  band.p05 = band.p95 = middle;
  if (middle <= 0 || middle >= 1) return band;
  const double angle = std::asin(std::sqrt(middle));
  const double reach = uncertainty::student_t_reach(degrees, level) * deviation /
                       (2 * std::sqrt(middle * (1 - middle)));
  band.p05 = square(std::sin(std::max(0.0, angle - reach)));
  band.p95 = square(std::sin(std::min(std::numbers::pi / 2, angle + reach)));
  return band;
}

// Layers are draws of their own.
LossBand band_of_layers(std::vector<double> own, FurtherLosses further) {
  std::vector<std::vector<double>> steps = std::move(further.of_layers);
  const auto layers = static_cast<double>(own.size());
  steps.push_back(std::move(own));
  const auto count = static_cast<double>(steps.size());
  double middle = 0;
  for (const std::vector<double>& step : steps) middle += mean(step) / count;
  const double found = variance_between(steps);
  const double fewer_blocks = 1 / further.blocks_drawn - 1 / further.blocks_of_step;
  const double variance =
      std::max(found - (count - 1) / count * further.block_variance * fewer_blocks,
               further.block_variance / further.blocks_of_step);
  return arcsine_band(middle, std::sqrt(variance / layers + found / (count * layers)),
                      (count - 1) * layers, steps.size(), std::sqrt(variance / layers));
}

// All layers are one draw of the tokens' ids, which differ from block to block and from step to
// step: nothing else does. So the variance of one block's mean over layers says all, found between
// the blocks of a step and between the means of further steps.
LossBand band_of_ids(const std::vector<double>& own, const FurtherLosses& further) {
  std::vector<std::vector<double>> means;
  for (const std::vector<double>& layers : further.of_layers) means.push_back({mean(layers)});
  const auto count = static_cast<double>(means.size());
  const double between = count - 1;
  const double inside = count * (further.blocks_drawn - 1);
  const double degrees = between + inside;
  const double of_block =
      (between * variance_between(means) * further.blocks_drawn + inside * further.block_variance) /
      degrees;
  const double blocks = count * further.blocks_drawn + further.blocks_of_step;
  double middle = mean(own) * further.blocks_of_step / blocks;
  for (const std::vector<double>& each : means) {
    middle += each.front() * further.blocks_drawn / blocks;
  }
  const double variance = of_block / further.blocks_of_step;
  return arcsine_band(middle, std::sqrt(variance + of_block / blocks), degrees, means.size() + 1,
                      std::sqrt(variance));
}

// Of what is drawn; weights as they are taken.
std::optional<LossBand> drawn_band(const training::TrainingJob& job,
                                   const training::TrainingStep& step, int threads,
                                   const training::DrawProgress& progress,
                                   training::SharedDraws* shared) {
  if (!step.routing) return std::nullopt;
  const training::RoutingFigures& figures = *step.routing;
  const double own = figures.loss.residual_loss;
  if (own > 0 && counted_loss(job, step) == 0) return std::nullopt;
  if (own == 0 && !job.routing->router.drops) return LossBand{1, 0, 0, 0};
  if (figures.recorded_steps > 0) {
    const bool per_layer = job.routing->draws == training::RoutingDraws::per_layer;
    return per_layer ? recorded_band(figures) : std::nullopt;
  }
  const auto further_steps = [&](int steps) -> FurtherLosses {
    return shared == nullptr ? training::further_losses(job, steps, threads, progress)
                             : *shared->further(job, steps, threads, progress);
  };
  if (joins_layers(job.routing->scores)) {
    constexpr int further = static_cast<int>(uncertainty::order_statistics_from) - 1;
    return joint_band(own, further_steps(further));
  }
  if (job.routing->router.kind->keeps_ids) {
    return band_of_ids(figures.layer_losses, further_steps(most_steps - 1));
  }
  const auto layers = static_cast<int>(figures.layer_losses.size());
  const int further =
      std::clamp((enough_degrees + layers - 1) / layers, fewest_steps - 1, most_steps - 1);
  return band_of_layers(figures.layer_losses, further_steps(further));
}

}  // namespace

std::optional<LossBand> training_loss_band(const training::TrainingJob& job,
                                           const training::TrainingStep& step, int threads,
                                           const training::DrawProgress& progress,
                                           training::SharedDraws* shared) {
  std::optional<LossBand> band = drawn_band(job, step, threads, progress, shared);
  if (!band) return band;
  return with_unknown_weights(band, training::block_routing(job),
                              training::drawn_replicas(job).front(),
                              step.routing->loss.residual_loss);
}

}  // namespace moesim::study
