#include "sim/uncertainty/software/unknowns.hpp"

#include <cmath>

namespace moesim::uncertainty {

StepFactors::StepFactors(const Unknowns& unknowns, bool prices_host)
    : level(std::exp(unknowns[at(Unknown::level)])),
      experts(std::exp(unknowns[at(Unknown::experts)])),
      exchange(std::exp(unknowns[at(Unknown::exchange)])),
      crossing(exchange * std::exp(unknowns[at(Unknown::nic)])),
      host(prices_host ? 1 : std::exp(unknowns[at(Unknown::host)])) {}

double StepFactors::inside(const StepClasses& classes) const {
  return classes.compute + experts * classes.experts + exchange * classes.exchange +
         crossing * classes.crossing + host * classes.host;
}

double inside_ms(const StepClasses& classes, const Unknowns& unknowns) {
  return StepFactors(unknowns, classes.host_gain.has_value()).inside(classes);
}

double scaled_ms(const StepClasses& classes, const Unknowns& unknowns) {
  const double time = std::exp(unknowns[at(Unknown::level)]) * inside_ms(classes, unknowns);
  switch (classes.kind) {
    case RowKind::layer:
      return time * std::exp(unknowns[at(Unknown::layer_alone)]);
    case RowKind::exchange:
      return time * std::exp(unknowns[at(Unknown::exchange_alone)]);
    case RowKind::step:
      break;
  }
  return time + unknowns[at(Unknown::fixed_ms)];
}

Unknowns log_slopes(const StepClasses& classes, const Unknowns& unknowns) {
  const StepFactors factors(unknowns, classes.host_gain.has_value());
  const double inside = factors.inside(classes);
  const double total = scaled_ms(classes, unknowns);
  const bool is_step = classes.kind == RowKind::step;
  // The share of the whole that the factors act on.
  const double scaled = is_step ? factors.level * inside / total : 1;
  Unknowns slopes{};
  slopes[at(Unknown::level)] = scaled;
  slopes[at(Unknown::experts)] = scaled * factors.experts * classes.experts / inside;
  slopes[at(Unknown::nic)] = scaled * factors.crossing * classes.crossing / inside;
  slopes[at(Unknown::exchange)] =
      slopes[at(Unknown::nic)] + scaled * factors.exchange * classes.exchange / inside;
  slopes[at(Unknown::host)] =
      scaled * classes.host_gain.value_or(factors.host * classes.host) / inside;
  if (is_step) slopes[at(Unknown::fixed_ms)] = 1 / total;
  if (classes.kind == RowKind::layer) slopes[at(Unknown::layer_alone)] = 1;
  if (classes.kind == RowKind::exchange) slopes[at(Unknown::exchange_alone)] = 1;
  return slopes;
}

double variance_along(const Unknowns& weights, const Covariance& covariance) {
  double sum = 0;
  for (std::size_t row = 0; row < unknown_count; ++row) {
    for (std::size_t column = 0; column < unknown_count; ++column) {
      sum += weights[row] * weights[column] * covariance[row][column];
    }
  }
  return sum;
}

}  // namespace moesim::uncertainty
