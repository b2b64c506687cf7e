#include "sim/uncertainty/software/software_prior.hpp"

#include <algorithm>
#include <cmath>

#include "sim/base/numbers.hpp"
#include "sim/uncertainty/steps/assumed_deviations.hpp"

namespace moesim::uncertainty {
namespace {

constexpr double fixed_deviation_ms = 20;
constexpr double experts_deviation = 0.15;
constexpr double alone_deviation = 0.15;

}  // namespace

StepClasses MeasuredRow::at(const Unknowns& unknowns) const {
  if (hosts.empty()) return predicted;
  constexpr double apart = 1e-3;
  const double host = unknowns[uncertainty::at(Unknown::host)];
  const auto priced = [&](double log_factor) {
    StepClasses classes = hosts.at(std::exp(log_factor));
    classes.host_gain = 0;
    return classes;
  };
  StepClasses found = priced(host);
  found.host_gain =
      (inside_ms(priced(host + apart), unknowns) - inside_ms(priced(host - apart), unknowns)) /
      (2 * apart);
  return found;
}

double MeasuredRow::scaled_ms(const Unknowns& unknowns) const {
  return uncertainty::scaled_ms(at(unknowns), unknowns);
}

SoftwarePrior prior_of(const StepErrors& errors, const Subject& subject) {
  const Expected expected =
      ErrorModel(errors.residuals().groups, errors.residuals().components).at(subject);
  SoftwarePrior prior;
  prior.mean[at(Unknown::level)] = expected.mean;
  prior.deviation[at(Unknown::level)] = expected.latent;
  prior.deviation[at(Unknown::exchange)] = exchange_deviation;
  prior.deviation[at(Unknown::host)] = host_deviation;
  prior.deviation[at(Unknown::fixed_ms)] = fixed_deviation_ms;
  prior.scatter[static_cast<std::size_t>(RowKind::step)] = expected.scatter;
  return prior;
}

SoftwarePrior mixture_of(const std::vector<SoftwarePrior>& priors) {
  const auto mean_over = [&](auto value_in) {
    double sum = 0;
    for (const SoftwarePrior& prior : priors) sum += value_in(prior);
    return sum / static_cast<double>(priors.size());
  };
  SoftwarePrior mixture;
  for (std::size_t place = 0; place < unknown_count; ++place) {
    const double mean = mean_over([&](const SoftwarePrior& prior) { return prior.mean[place]; });
    mixture.mean[place] = mean;
    // The variance inside the priors and that between them.
    mixture.deviation[place] = std::sqrt(mean_over([&](const SoftwarePrior& prior) {
      return square(prior.deviation[place]) + square(prior.mean[place] - mean);
    }));
  }
  for (std::size_t kind = 0; kind < row_kind_count; ++kind) {
    mixture.scatter[kind] = std::sqrt(
        mean_over([&](const SoftwarePrior& prior) { return square(prior.scatter[kind]); }));
  }
  mixture.scatter_rows = mean_over([](const SoftwarePrior& prior) { return prior.scatter_rows; });
  return mixture;
}

SoftwarePrior prior_with(SoftwarePrior prior, const std::vector<MeasuredRow>& rows) {
  for (const MeasuredRow& row : rows) {
    if (row.predicted.kind == RowKind::layer) {
      prior.deviation[at(Unknown::experts)] = experts_deviation;
      prior.deviation[at(Unknown::layer_alone)] = alone_deviation;
    } else if (row.predicted.kind == RowKind::exchange) {
      prior.deviation[at(Unknown::exchange_alone)] = alone_deviation;
      prior.deviation[at(Unknown::nic)] = crossing_deviation;
    }
  }
  // An exchange inside; or a step with exchanges across, of which nothing else may be assumed
  // because exchanges were measured alone, too.
  const auto is_together = [](const MeasuredRow& row) {
    return (row.predicted.kind == RowKind::exchange) == (row.predicted.crossing == 0);
  };
  prior.crossing_apart =
      prior.deviation[at(Unknown::nic)] > 0 && std::none_of(rows.begin(), rows.end(), is_together);
  if (prior.crossing_apart) {
    prior.deviation[at(Unknown::nic)] =
        std::hypot(crossing_deviation, prior.deviation[at(Unknown::exchange)]);
  }
  return prior;
}

Unknowns by_variables(Unknowns slopes, const SoftwarePrior& prior) {
  if (prior.crossing_apart) slopes[at(Unknown::exchange)] -= slopes[at(Unknown::nic)];
  return slopes;
}

bool exchanges_alone(const std::vector<MeasuredRow>& rows) {
  return std::all_of(rows.begin(), rows.end(), [](const MeasuredRow& row) {
    return row.predicted.kind == RowKind::exchange;
  });
}

}  // namespace moesim::uncertainty
