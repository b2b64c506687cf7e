#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/uncertainty/software/step_fit.hpp"

namespace moesim::uncertainty {
namespace {

constexpr double worth_fitting = 0.01;

// The range over the rows of what `moved` says of each.
template <class Moved>
double range_of(const std::vector<MeasuredRow>& rows, Moved moved) {
  double least = 1e300;
  double most = 0;
  for (const MeasuredRow& row : rows) {
    least = std::min(least, moved(row));
    most = std::max(most, moved(row));
  }
  return most - least;
}

// The range over the rows of what a deviation of the unknown makes of them.
double moved_apart(const std::vector<MeasuredRow>& rows, Unknown unknown,
                   const SoftwarePrior& prior) {
  const double deviation = prior.deviation[at(unknown)];
  if (unknown != Unknown::host) {
    return range_of(rows, [&](const MeasuredRow& row) {
      return by_variables(log_slopes(row.at(prior.mean), prior.mean), prior)[at(unknown)] *
             deviation;
    });
  }
  // A row that does not wait for the host may wait for a slower one, and the other way round.
  const auto towards = [&](double sign) {
    Unknowns there = prior.mean;
    there[at(unknown)] += sign * deviation;
    return range_of(rows, [&](const MeasuredRow& row) {
      return sign * std::log(row.scaled_ms(there) / row.scaled_ms(prior.mean));
    });
  };
  return std::max(towards(1), towards(-1));
}

}  // namespace

std::vector<Unknown> alone_in(const std::vector<MeasuredRow>& rows) {
  const auto any = [&](RowKind kind) {
    return std::any_of(rows.begin(), rows.end(),
                       [&](const MeasuredRow& row) { return row.predicted.kind == kind; });
  };
  std::vector<Unknown> found;
  if (any(RowKind::layer)) found.push_back(Unknown::layer_alone);
  if (any(RowKind::exchange)) found.push_back(Unknown::exchange_alone);
  return found;
}

std::vector<Unknown> carried_by(const std::vector<MeasuredRow>& rows, const SoftwarePrior& prior) {
  // Exchanges say nothing of computation: the level stays what the prior expects.
  const Unknown of_exchanges = prior.crossing_apart ? Unknown::nic : Unknown::exchange;
  const Unknown first = exchanges_alone(rows) ? of_exchanges : Unknown::level;
  std::vector<std::pair<double, Unknown>> others;
  for (const Unknown unknown :
       {Unknown::exchange, Unknown::host, Unknown::fixed_ms, Unknown::experts, Unknown::nic}) {
    if (unknown == first) continue;
    const double moved = moved_apart(rows, unknown, prior);
    if (moved > worth_fitting) others.emplace_back(moved, unknown);
  }
  std::sort(others.rbegin(), others.rend());
  std::vector<Unknown> free = alone_in(rows);
  free.insert(free.begin(), first);
  for (const auto& [moved, unknown] : others) free.push_back(unknown);
  return free;
}

}  // namespace moesim::uncertainty
