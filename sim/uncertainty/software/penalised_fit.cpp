#include "sim/uncertainty/software/penalised_fit.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "sim/base/numbers.hpp"

namespace moesim::uncertainty {
namespace {

using Scatters = std::array<Scatter, row_kind_count>;

constexpr int most_rounds = 200;
constexpr int straight_rounds = 30;
constexpr double damping = 0.9;
// The level has the tails of one degree of freedom: one software in ten is far from what others of
// its kind suggest (published: the same step at 1.0 and 2.2 times its prediction). With lighter
// tails (3 degrees) few steps that were all 1.3 times slower were taken for slow exchanges. Rows
// that agree with the prior pay for it: eight of one job leave the level, against host and
// exchanges, as open as the prior (0.915 to 1.129 for 0.967 to 1.065), and the 90 % band of a step
// without exchanges is 1.55 wide in place of 1.42.
constexpr double level_degrees = 1;

// What leaving the prior costs, of an unknown so many deviations from its mean.
double penalty(Unknown unknown, double away) {
  if (unknown != Unknown::level) return square(away) / 2;
  return level_degrees / 2 * std::log1p(square(away) / level_degrees);
}

// Its slope over `away`: 1 for a normal distribution.
double pull(Unknown unknown, double away) {
  return unknown == Unknown::level ? 1 / (1 + square(away) / level_degrees) : 1;
}

void move(Unknown variable, double by, const SoftwarePrior& prior, Unknowns& unknowns) {
  unknowns[at(variable)] += by;
  if (prior.crossing_apart && variable == Unknown::exchange) unknowns[at(Unknown::nic)] -= by;
}

double away_from(const SoftwarePrior& prior, const StepFit& fit, Unknown unknown) {
  double value = fit.unknowns[at(unknown)];
  if (prior.crossing_apart && unknown == Unknown::nic) value += fit.unknowns[at(Unknown::exchange)];
  return (value - prior.mean[at(unknown)]) / prior.deviation[at(unknown)];
}

// What the rows of each kind say of their scatter, summed: the squares of what they are off, what
// the unknowns leave open of them, and the prior's.
std::array<double, row_kind_count> scatter_seen(const std::vector<MeasuredRow>& rows,
                                                const std::vector<Unknown>& free,
                                                const SoftwarePrior& prior, const StepFit& fit) {
  std::array<double, row_kind_count> squares{};
  for (std::size_t kind = 0; kind < row_kind_count; ++kind) {
    squares[kind] = prior.scatter_rows * square(prior.scatter[kind]);
  }
  for (const MeasuredRow& row : rows) {
    Unknowns slopes{};
    const StepClasses classes = row.at(fit.unknowns);
    const Unknowns all = by_variables(log_slopes(classes, fit.unknowns), prior);
    for (const Unknown unknown : free) slopes[at(unknown)] = all[at(unknown)];
    squares[static_cast<std::size_t>(row.predicted.kind)] +=
        square(std::log(row.measured_ms / scaled_ms(classes, fit.unknowns))) +
        variance_along(slopes, fit.covariance);
  }
  return squares;
}

// Expectation-maximisation: what the unknowns leave open counts as scatter seen.
void update_scatter(const std::vector<MeasuredRow>& rows, const std::vector<Unknown>& free,
                    const SoftwarePrior& prior, StepFit& fit) {
  const auto squares = scatter_seen(rows, free, prior, fit);
  for (std::size_t kind = 0; kind < row_kind_count; ++kind) {
    fit.scatters[kind].deviation = std::sqrt(squares[kind] / fit.scatters[kind].degrees);
  }
}

// Goes from `start` to the likeliest place near it, with these scatters, or, of nullptr, with those
// that are likeliest.
StepFit fit_from(const Unknowns& start, const std::vector<MeasuredRow>& rows,
                 const std::vector<Unknown>& free, const SoftwarePrior& prior,
                 const Scatters* scatters) {
  StepFit fit;
  fit.unknowns = start;
  for (std::size_t kind = 0; kind < row_kind_count; ++kind) {
    fit.scatters[kind] = {prior.scatter[kind], prior.scatter_rows, 0};
  }
  for (const MeasuredRow& row : rows) {
    Scatter& scatter = fit.scatters[static_cast<std::size_t>(row.predicted.kind)];
    scatter.degrees += 1;
    scatter.rows += 1;
  }
  if (scatters != nullptr) fit.scatters = *scatters;
  const bool is_curved = has_curves(rows);
  double most = 1;  // deviations: far from the prior the step is not linear
  for (int round = 0; round < most_rounds; ++round) {
    // Around the factor at which a wait begins, whole steps would go to and fro.
    if (is_curved && round > straight_rounds) most *= damping;
    const Normal normal = normal_equations(rows, free, prior, fit);
    const Vector moves = SymmetricMatrix(free.size(), normal.matrix).solve(normal.right);
    fit.covariance = covariance_of(normal, free, prior);
    double farthest = 0;
    for (std::size_t one = 0; one < free.size(); ++one) {
      const double deviation = prior.deviation[at(free[one])];
      double by = std::clamp(moves[one], -most, most) * deviation;
      if (free[one] == Unknown::fixed_ms) by = std::max(by, -fit.unknowns[at(free[one])]);
      move(free[one], by, prior, fit.unknowns);
      farthest = std::max(farthest, std::abs(by) / deviation);
    }
    if (scatters == nullptr) update_scatter(rows, free, prior, fit);
    if (farthest < 1e-8 && (scatters != nullptr || round > 20)) break;
  }
  for (const Unknown unknown : free) {
    fit.effective += std::max(
        0.0, 1 - fit.covariance[at(unknown)][at(unknown)] / square(prior.deviation[at(unknown)]));
  }
  return fit;
}

// A start at the mean of what the rows are off: from far away the first round would take for
// scatter what all of them have in common.
Unknowns at_mean_of_rows(const std::vector<MeasuredRow>& rows, Unknowns start) {
  double off = 0;
  double steps = 0;
  for (const MeasuredRow& row : rows) {
    if (row.predicted.kind == RowKind::exchange) continue;
    off += std::log(row.measured_ms / row.scaled_ms(start));
    ++steps;
  }
  if (steps > 0) start[at(Unknown::level)] += off / steps;
  return start;
}

// The scatters with a level that may be anything, near a start at the mean of the rows.
Scatters scatters_around(const Unknowns& start, const std::vector<MeasuredRow>& rows,
                         const std::vector<Unknown>& free, const SoftwarePrior& prior) {
  return fit_from(at_mean_of_rows(rows, start), rows, free, with_open_level(prior), nullptr)
      .scatters;
}

}  // namespace

Normal normal_equations(const std::vector<MeasuredRow>& rows, const std::vector<Unknown>& free,
                        const SoftwarePrior& prior, const StepFit& fit) {
  const std::size_t size = free.size();
  Normal normal{Vector(size * size), Vector(size)};
  for (const MeasuredRow& row : rows) {
    const StepClasses classes = row.at(fit.unknowns);
    const Unknowns slopes = by_variables(log_slopes(classes, fit.unknowns), prior);
    const double off = std::log(row.measured_ms / scaled_ms(classes, fit.unknowns));
    const double variance = square(fit.scatter(row.predicted.kind).deviation);
    for (std::size_t one = 0; one < size; ++one) {
      const double slope = slopes[at(free[one])] * prior.deviation[at(free[one])];
      normal.right[one] += slope * off / variance;
      for (std::size_t other = 0; other < size; ++other) {
        normal.matrix[one * size + other] +=
            slope * slopes[at(free[other])] * prior.deviation[at(free[other])] / variance;
      }
    }
  }
  for (std::size_t one = 0; one < size; ++one) {
    const double away = away_from(prior, fit, free[one]);
    const double weight = pull(free[one], away);
    normal.matrix[one * size + one] += weight;
    normal.right[one] -= weight * away;
  }
  return normal;
}

Covariance covariance_of(const Normal& normal, const std::vector<Unknown>& free,
                         const SoftwarePrior& prior) {
  Covariance covariance{};
  for (std::size_t place = 0; place < unknown_count; ++place) {
    covariance[place][place] = square(prior.deviation[place]);
  }
  const SymmetricMatrix matrix(free.size(), normal.matrix);
  for (std::size_t column = 0; column < free.size(); ++column) {
    Vector unit(free.size());
    unit[column] = 1;
    const Vector solved = matrix.solve(std::move(unit));
    for (std::size_t row = 0; row < free.size(); ++row) {
      covariance[at(free[row])][at(free[column])] =
          solved[row] * prior.deviation[at(free[row])] * prior.deviation[at(free[column])];
    }
  }
  return covariance;
}

SoftwarePrior with_open_level(SoftwarePrior prior) {
  constexpr double open = 1;
  double& deviation = prior.deviation[at(Unknown::level)];
  deviation = std::max(deviation, open);
  return prior;
}

double cost_of(const std::vector<MeasuredRow>& rows, const std::vector<Unknown>& free,
               const SoftwarePrior& prior, const StepFit& fit) {
  double cost = 0;
  const auto squares = scatter_seen(rows, free, prior, fit);
  for (std::size_t kind = 0; kind < row_kind_count; ++kind) {
    const Scatter& scatter = fit.scatters[kind];
    cost += scatter.degrees * std::log(scatter.deviation);
    cost += (squares[kind] / square(scatter.deviation) - scatter.degrees) / 2;
  }
  for (const Unknown unknown : free) cost += penalty(unknown, away_from(prior, fit, unknown));
  return cost;
}

bool has_curves(const std::vector<MeasuredRow>& rows) {
  return std::any_of(rows.begin(), rows.end(),
                     [](const MeasuredRow& row) { return !row.hosts.empty(); });
}

bool holds(const std::vector<Unknown>& unknowns, Unknown unknown) {
  return std::find(unknowns.begin(), unknowns.end(), unknown) != unknowns.end();
}

StepFit likeliest_from(const std::vector<double>& hosts, const std::vector<MeasuredRow>& rows,
                       const std::vector<Unknown>& free, const SoftwarePrior& prior) {
  std::optional<StepFit> likeliest;
  double least = std::numeric_limits<double>::infinity();
  const auto take = [&](const Unknowns& start, const Scatters* scatters) {
    const StepFit fit = fit_from(start, rows, free, prior, scatters);
    const double cost = cost_of(rows, free, prior, fit);
    if (likeliest && cost >= least) return;
    likeliest = fit;
    least = cost;
  };
  for (const double host : hosts) {
    Unknowns start = prior.mean;
    start[at(Unknown::host)] += host;
    if (!holds(free, Unknown::level)) {
      take(start, nullptr);
      continue;
    }
    const Scatters scatters = scatters_around(start, rows, free, prior);
    take(start, &scatters);
    take(at_mean_of_rows(rows, start), &scatters);
    if (!holds(free, Unknown::exchange)) continue;
    for (const double sign : {-1.0, 1.0}) {
      Unknowns there = start;
      move(Unknown::exchange, sign * prior.deviation[at(Unknown::exchange)], prior, there);
      take(at_mean_of_rows(rows, there), &scatters);
    }
  }
  return *likeliest;
}

}  // namespace moesim::uncertainty
