#include "sim/uncertainty/software/step_software.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/base/contains.hpp"
#include "sim/uncertainty/statistics/student_t.hpp"
#include "sim/uncertainty/steps/assumed_deviations.hpp"

namespace moesim::uncertainty {

using training::TrainingPart;

int StepSoftware::rows() const {
  int sum = 0;
  for (const Scatter& each : scatters) sum += each.rows;
  return sum;
}

double StepSoftware::host_factor() const {
  return prices_host ? std::exp(unknowns[at(Unknown::host)]) : 1;
}

double StepSoftware::host_reach() const {
  constexpr double least = 0.02;  // as near as the host is ever known
  return std::max(least, std::sqrt(covariance[at(Unknown::host)][at(Unknown::host)]));
}

void MeasuredExchanges::add(const ExchangeSize& size) {
  const auto widen = [&](double ExchangeSize::*part) {
    if (size.*part == 0) return;
    least.*part = least.*part == 0 ? size.*part : std::min(least.*part, size.*part);
    most.*part = std::max(most.*part, size.*part);
  };
  widen(&ExchangeSize::bytes);
  widen(&ExchangeSize::gpus);
  ++rows;
}

double MeasuredExchanges::times_beyond(const ExchangeSize& size) const {
  double times = 1;
  for (const auto part : {&ExchangeSize::bytes, &ExchangeSize::gpus}) {
    if (size.*part == 0 || least.*part == 0) continue;
    times = std::max({times, least.*part / (size.*part), size.*part / (most.*part)});
  }
  return times;
}

bool StepSoftware::has_exchanges(bool crosses) const {
  if (scatter(RowKind::exchange).rows == 0) return false;
  if (exchanges[0].rows + exchanges[1].rows > 0) return exchanges[crosses ? 1 : 0].rows > 0;
  return !crosses || covariance[at(Unknown::nic)][at(Unknown::nic)] > 0;
}

double StepSoftware::exchange_weight(bool crosses, const ExchangeSize& size) const {
  constexpr double near = 4;
  const double times = exchanges[crosses ? 1 : 0].times_beyond(size);
  return std::clamp(2 - std::log(times) / std::log(near), 0.0, 1.0);
}

StepSoftware::AloneFactor StepSoftware::exchange_factor(bool crosses, double level) const {
  StepClasses classes;
  classes.kind = RowKind::exchange;
  (crosses ? classes.crossing : classes.exchange) = 1;
  const Scatter& alone = scatter(RowKind::exchange);
  const double own = alone.deviation * alone.deviation;
  const double left_open = variance_along(log_slopes(classes, unknowns), covariance);
  const double variance = left_open + own;
  // Only the scatter is estimated from few rows, and what it makes the rows leave open, which is as
  // much at most: the degrees of freedom grow as these are less of the whole.
  const double degrees = alone.degrees * (variance / (own + std::min(own, left_open)));
  return {scaled_ms(classes, unknowns), student_t_reach(degrees, level) * std::sqrt(variance)};
}

training::TrainingStep StepSoftware::applied(const training::TrainingStep& step,
                                             const CrossingParts& crossing) const {
  training::TrainingStep scaled = step;
  const StepFactors factors(unknowns, prices_host);
  const auto scale = [&](training::PartTimes& parts) {
    for (const auto& part : training::part_names) {
      const auto place = at(part.value);
      double& us = parts[place];
      us *= factors.level;
      if (training::is_exchange(part.value))
        us *= crossing[place] ? factors.crossing : factors.exchange;
      if (part.value == TrainingPart::experts) us *= factors.experts;
      if (part.value != TrainingPart::host) continue;
      us *= factors.host;
      us += 1e3 * unknowns[at(Unknown::fixed_ms)];
    }
    return training::sum(parts);
  };
  scaled.step_us = scale(scaled.parts);
  if (step.balanced_step_us > 0) scaled.balanced_step_us = scale(scaled.balanced_parts);
  if (scaled.hidden_parts) scale(*scaled.hidden_parts);
  if (scaled.host_gain_us) *scaled.host_gain_us *= factors.level;
  const double speed = step.step_us / scaled.step_us;
  scaled.tokens_per_second_per_gpu *= speed;
  scaled.tflops_per_gpu *= speed;
  scaled.mfu *= speed;
  // Steps of the same job with other rows take longer by as much.
  scaled.shown_step_us /= speed;
  if (scaled.rank_capacity) {
    scaled.rank_capacity->static_step_us /= speed;
    scaled.rank_capacity->rerun_us /= speed;
    scaled.rank_capacity->capture_us /= speed;
  }
  return scaled;
}

double StepSoftware::least_us(double step_us, const CrossingParts& crossing) const {
  const StepFactors factors(unknowns, prices_host);
  double least = std::min({1.0, factors.experts, factors.exchange, factors.host});
  if (std::find(crossing.begin(), crossing.end(), true) != crossing.end()) {
    least = std::min(least, factors.crossing);
  }
  return factors.level * least * step_us + 1e3 * unknowns[at(Unknown::fixed_ms)];
}

std::vector<UnmeasuredTrait> StepSoftware::unmeasured(const std::vector<StepTrait>& traits) const {
  if (measured.most.empty()) return {};
  return unmeasured_traits({measured}, measured.machine, traits);
}

StepSoftware StepSoftware::on(const std::string& cluster) const {
  StepSoftware there = *this;
  if (clusters.empty() || contains(clusters, cluster)) return there;
  there.covariance[at(Unknown::exchange)][at(Unknown::exchange)] +=
      exchange_deviation * exchange_deviation;
  there.covariance[at(Unknown::nic)][at(Unknown::nic)] += crossing_deviation * crossing_deviation;
  return there;
}

Band StepSoftware::band(const StepClasses& predicted, const Subject& subject,
                        const std::string& precision, double new_model,
                        double new_precision) const {
  StepClasses classes = predicted;
  if (prices_host && !classes.host_gain) classes.host_gain = classes.host;
  double variance = variance_along(log_slopes(classes, unknowns), covariance);
  const bool known_model = contains(models, subject.model);
  if (!known_model) variance += new_model * new_model;
  if (!contains(precisions, precision)) variance += new_precision * new_precision;
  Band found;
  found.basis = known_model ? Basis::own : Basis::own_models;
  const Scatter& steps = scatter(RowKind::step);
  found.expected = {0, std::sqrt(variance), steps.deviation};
  found.held_out = static_cast<std::size_t>(rows());
  found.rows = rows();
  found.models = static_cast<int>(models.size());
  found.levels = symmetric_levels(steps.degrees, found.expected.deviation());
  return found;
}

void add_host_gain(const StepSoftware& software, const training::TrainingJob& job,
                   training::TrainingStep& step,
                   std::shared_ptr<const training::DrawnLoads> loads) {
  if (!software.prices_host || step.host_gain_us) return;
  step.host_gain_us = training::host_gain_us(job, software.host_reach(), std::move(loads));
}

}  // namespace moesim::uncertainty
