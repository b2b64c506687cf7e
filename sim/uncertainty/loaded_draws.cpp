#include "sim/uncertainty/loaded_draws.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/base/statistics.hpp"
#include "sim/uncertainty/symmetric_matrix.hpp"

namespace moesim::uncertainty {
namespace {

constexpr std::size_t fewest = 8;
constexpr double worth_it = 1.0 / 3;  // explained share of the variance

double variance_of(const std::vector<double>& values) {
  const double middle = mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - middle) * (value - middle);
  return squares / static_cast<double>(values.size());
}

double product(const std::vector<double>& one, const std::vector<double>& other) {
  double sum = 0;
  for (std::size_t place = 0; place < one.size(); ++place) sum += one[place] * other[place];
  return sum;
}

// Values less their mean and what columns explain of them (least squares).
struct Explained {
  double mean = 0;
  Vector slopes;             // [column]
  std::vector<double> rest;  // [draw]
};

std::vector<double> centred(const std::vector<double>& values) {
  const double middle = mean(values);
  std::vector<double> found;
  for (const double value : values) found.push_back(value - middle);
  return found;
}

Explained explained(const std::vector<double>& values,
                    const std::vector<std::vector<double>>& columns) {
  Explained found{mean(values), Vector(columns.size()), centred(values)};
  if (columns.empty()) return found;
  std::vector<std::vector<double>> around;
  for (const std::vector<double>& column : columns) around.push_back(centred(column));
  Vector matrix;
  Vector right;
  for (const std::vector<double>& one : around) {
    for (const std::vector<double>& other : around) matrix.push_back(product(one, other));
    right.push_back(product(one, found.rest));
  }
  found.slopes = SymmetricMatrix(around.size(), std::move(matrix)).solve(std::move(right));
  for (std::size_t column = 0; column < around.size(); ++column) {
    for (std::size_t draw = 0; draw < values.size(); ++draw) {
      found.rest[draw] -= found.slopes[column] * around[column][draw];
    }
  }
  return found;
}

// What follows routing, without the errors of its curves: times, one for each part of the mixture,
// and the variance of each.
struct Routed {
  std::vector<double> times_ms;
  std::vector<double> loads;  // of these; empty: the times are of the draws
  double variance = 0;
};

Routed routed_times(const DrawnParts& parts) {
  const Explained times = explained(parts.routed_ms, parts.errors);
  const double least_ms = *std::min_element(parts.routed_ms.begin(), parts.routed_ms.end()) / 2;
  Routed routed;
  const auto add_slopes = [&](const Vector& slopes) {
    for (const double slope : slopes) routed.variance += slope * slope;
  };
  if (parts.loads.size() == parts.routed_ms.size()) {
    const Explained loads = explained(parts.loads, parts.errors);
    const double together = product(loads.rest, times.rest);
    const double of_loads = product(loads.rest, loads.rest);
    const double of_times = product(times.rest, times.rest);
    if (together > 0 && together * together >= worth_it * of_loads * of_times) {
      const double slope = together / of_loads;
      Vector slopes = times.slopes;
      for (std::size_t curve = 0; curve < slopes.size(); ++curve) {
        slopes[curve] -= slope * loads.slopes[curve];
      }
      add_slopes(slopes);
      const std::size_t unknowns = parts.errors.size() + 2;
      routed.variance +=
          (of_times - together * slope) / static_cast<double>(parts.routed_ms.size() - unknowns);
      routed.loads = parts.loads;
      routed.loads.insert(routed.loads.end(), parts.further_loads.begin(),
                          parts.further_loads.end());
      // Not below half of the shortest time, wherever the load lies.
      for (const double load : routed.loads) {
        routed.times_ms.push_back(std::max(times.mean + slope * (load - loads.mean), least_ms));
      }
      return routed;
    }
  }
  add_slopes(times.slopes);
  for (const double rest : times.rest) {
    routed.times_ms.push_back(std::max(times.mean + rest, least_ms));
  }
  return routed;
}

}  // namespace

std::vector<WeighedDraw> weighed_draws(const std::vector<StepDraw>& draws,
                                       const DrawnParts& parts) {
  std::vector<WeighedDraw> weighed;
  const std::size_t enough = std::max(fewest, 2 * (parts.errors.size() + 2));
  if (draws.size() < enough || parts.routed_ms.size() != draws.size()) {
    for (const StepDraw& draw : draws) weighed.push_back({draw, 0});
    return weighed;
  }
  const Routed routed = routed_times(parts);
  double steady_ms = 0;
  double variance = routed.variance;
  for (const std::vector<double>& part : parts.steady_ms) {
    steady_ms += mean(part);
    variance += variance_of(part);
  }
  for (std::size_t place = 0; place < routed.times_ms.size(); ++place) {
    std::size_t like = place;
    if (!routed.loads.empty()) {
      const double load = routed.loads[place];
      const auto nearest = std::min_element(
          parts.loads.begin(), parts.loads.end(),
          [&](double one, double other) { return std::abs(one - load) < std::abs(other - load); });
      like = static_cast<std::size_t>(nearest - parts.loads.begin());
    }
    const double step_ms = steady_ms + routed.times_ms[place];
    weighed.push_back({{step_ms, draws[like].shares}, variance / (step_ms * step_ms)});
  }
  return weighed;
}

}  // namespace moesim::uncertainty
