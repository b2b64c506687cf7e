#include "sim/uncertainty/software/step_fit.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/numbers.hpp"
#include "sim/uncertainty/statistics/symmetric_matrix.hpp"
#include "sim/uncertainty/steps/assumed_deviations.hpp"

namespace moesim::uncertainty {
namespace {

constexpr int most_rounds = 200;
constexpr int straight_rounds = 30;
constexpr double damping = 0.9;
constexpr double log_two = 0.6931471805599453;
// The level has the tails of a few degrees of freedom: one software in ten is far from what others
// of its kind suggest (published: the same step at 1.0 and 2.2 times its prediction). Within a
// deviation that changes little.
constexpr double level_degrees = 3;
// Fits that are less than e^2 times apart in how likely they are fit alike: by two deviations.
constexpr double alike = 2;
constexpr double hosts_apart = 0.2;  // of the logs of two hosts

// What leaving the prior costs, of an unknown so many deviations from its mean.
double penalty(Unknown unknown, double away) {
  if (unknown != Unknown::level) return square(away) / 2;
  return level_degrees / 2 * std::log1p(square(away) / level_degrees);
}

// Its slope over `away`: 1 for a normal distribution.
double pull(Unknown unknown, double away) {
  return unknown == Unknown::level ? 1 / (1 + square(away) / level_degrees) : 1;
}

// The covariance of by_variables() as that of the unknowns.
Covariance of_unknowns(Covariance covariance, const SoftwarePrior& prior) {
  if (!prior.crossing_apart) return covariance;
  const std::size_t nic = at(Unknown::nic), exchange = at(Unknown::exchange);
  for (Unknowns& row : covariance) row[nic] -= row[exchange];
  for (std::size_t column = 0; column < unknown_count; ++column) {
    covariance[nic][column] -= covariance[exchange][column];
  }
  return covariance;
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

// Penalised least squares around one point: the matrix of second derivatives, over `free`, in units
// of the prior's deviations.
struct Normal {
  Vector matrix;
  Vector right;
};

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

// Variances of the prior where nothing was free, the inverse of `matrix` elsewhere.
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

// Exchanges alone are off by a product of factors and cannot say by which of them. Those that stay
// at the prior's mean are wrong by what the free ones then wrongly took over: with the variance of
// the prior they count in the covariance of both (consider parameters; Schmidt 1966), so that the
// product is as certain as the rows make it. Beside `covariance`, which holds if the others are
// right.
Covariance with_considered(const std::vector<MeasuredRow>& rows, const std::vector<Unknown>& free,
                           const SoftwarePrior& prior, const StepFit& fit) {
  std::vector<Unknown> both = free;
  for (const auto& unknown : unknown_names) {
    if (std::find(free.begin(), free.end(), unknown.value) != free.end()) continue;
    if (prior.deviation[at(unknown.value)] > 0) both.push_back(unknown.value);
  }
  const std::size_t size = both.size();
  const Normal all = normal_equations(rows, both, prior, fit);
  const SymmetricMatrix alone(free.size(), normal_equations(rows, free, prior, fit).matrix);
  Covariance covariance = fit.covariance;
  for (std::size_t place = free.size(); place < size; ++place) {
    // What a deviation of this one makes of all: of itself 1, of the free ones what they take over.
    Vector moved(free.size());
    for (std::size_t row = 0; row < free.size(); ++row) {
      moved[row] = -all.matrix[row * size + place];
    }
    moved = alone.solve(std::move(moved));
    Unknowns along{};
    along[at(both[place])] = prior.deviation[at(both[place])];
    for (std::size_t row = 0; row < free.size(); ++row) {
      along[at(free[row])] = moved[row] * prior.deviation[at(free[row])];
    }
    for (std::size_t row = 0; row < unknown_count; ++row) {
      for (std::size_t column = 0; column < unknown_count; ++column) {
        covariance[row][column] += along[row] * along[column];
      }
    }
    covariance[at(both[place])][at(both[place])] -= square(prior.deviation[at(both[place])]);
  }
  return covariance;
}

// The matrix has rows of 0 for unknowns that are not in question: they must not be free.
std::vector<Unknown> in_question(const std::vector<Unknown>& free, const SoftwarePrior& prior) {
  std::vector<Unknown> found;
  for (const Unknown unknown : free) {
    if (prior.deviation[at(unknown)] > 0) found.push_back(unknown);
  }
  return found;
}

// Expectation-maximisation: what the unknowns leave open counts as scatter seen.
void update_scatter(const std::vector<MeasuredRow>& rows, const std::vector<Unknown>& free,
                    const SoftwarePrior& prior, StepFit& fit) {
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
  for (std::size_t kind = 0; kind < row_kind_count; ++kind) {
    fit.scatters[kind].deviation = std::sqrt(squares[kind] / fit.scatters[kind].degrees);
  }
}

// The negative logarithm of how likely the rows are, up to a constant.
double cost_of(const std::vector<Unknown>& free, const SoftwarePrior& prior, const StepFit& fit) {
  double cost = 0;
  for (const Scatter& scatter : fit.scatters) {
    cost += scatter.degrees * std::log(scatter.deviation);
  }
  for (const Unknown unknown : free) cost += penalty(unknown, away_from(prior, fit, unknown));
  return cost;
}

bool has_curves(const std::vector<MeasuredRow>& rows) {
  return std::any_of(rows.begin(), rows.end(),
                     [](const MeasuredRow& row) { return !row.hosts.empty(); });
}

// Goes from `start` to the likeliest place near it.
StepFit fit_from(const Unknowns& start, const std::vector<MeasuredRow>& rows,
                 const std::vector<Unknown>& free, const SoftwarePrior& prior) {
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
    update_scatter(rows, free, prior, fit);
    if (farthest < 1e-8 && round > 20) break;
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

bool holds(const std::vector<Unknown>& unknowns, Unknown unknown) {
  return std::find(unknowns.begin(), unknowns.end(), unknown) != unknowns.end();
}

// The likeliest of the fits that begin where the host is one of these.
StepFit likeliest_from(const std::vector<double>& hosts, const std::vector<MeasuredRow>& rows,
                       const std::vector<Unknown>& free, const SoftwarePrior& prior) {
  std::optional<StepFit> likeliest;
  const auto take = [&](const Unknowns& start) {
    StepFit fit = fit_from(start, rows, free, prior);
    const bool is_better =
        !likeliest || cost_of(free, prior, fit) < cost_of(free, prior, *likeliest);
    if (is_better) likeliest = fit;
  };
  for (const double host : hosts) {
    Unknowns start = prior.mean;
    start[at(Unknown::host)] += host;
    take(start);
    if (holds(free, Unknown::level)) take(at_mean_of_rows(rows, start));
  }
  return *likeliest;
}

bool prices_host(const std::vector<MeasuredRow>& rows, const std::vector<Unknown>& free) {
  return holds(free, Unknown::host) && has_curves(rows);
}

std::vector<Unknown> beside_host(const std::vector<Unknown>& free) {
  std::vector<Unknown> others;
  for (const Unknown unknown : free) {
    if (unknown != Unknown::host) others.push_back(unknown);
  }
  return others;
}

// How much less likely, in logs, the best fit with the host at its prior's mean may be and still be
// taken. A level that is off is dear where published steps tell it well, while the host's factor of
// two is assumed: without this most of a software that is slow in all of its parts would be
// explained by its host. A level that is about as open as the host shares with it what is slow.
double host_allowance(const std::vector<Unknown>& free, const SoftwarePrior& prior) {
  constexpr double known_better = 2;
  if (!holds(free, Unknown::level)) return 0;
  const double times = prior.deviation[at(Unknown::host)] / prior.deviation[at(Unknown::level)];
  return std::max(0.0, std::log(times / known_better));
}

// The fit that is taken, and the one with the host at its prior's mean, or elsewhere, that is not.
struct HostFits {
  StepFit taken;
  StepFit other;
  std::vector<Unknown> free;  // in the one that is taken
};

HostFits host_fits(const std::vector<MeasuredRow>& rows, const std::vector<Unknown>& free,
                   const SoftwarePrior& prior) {
  StepFit likeliest =
      likeliest_from({0, -log_two, log_two, -2 * log_two, 2 * log_two}, rows, free, prior);
  const std::vector<Unknown> others = beside_host(free);
  StepFit kept = likeliest_from({0}, rows, others, prior);
  const double lost = cost_of(others, prior, kept) - cost_of(free, prior, likeliest);
  const double allowed = host_allowance(free, prior);
  const bool differ =
      std::abs(likeliest.unknowns[at(Unknown::host)] - prior.mean[at(Unknown::host)]) > hosts_apart;
  const bool keeps = allowed > 0 && lost < allowed;
  HostFits fits{keeps ? kept : likeliest, keeps ? likeliest : kept, keeps ? others : free};
  if (differ && (keeps || lost < alike)) fits.taken.rival = fits.other.unknowns;
  return fits;
}

StepFit likeliest_fit(const std::vector<MeasuredRow>& rows, const std::vector<Unknown>& free,
                      const SoftwarePrior& prior) {
  if (!prices_host(rows, free)) return likeliest_from({0}, rows, free, prior);
  return host_fits(rows, free, prior).taken;
}

// A host, the best fit with it, and the negative logarithm of how likely it is, whatever the others
// are: their integral, of a normal distribution around that fit (Laplace).
struct HostNode {
  double host = 0;
  StepFit fit;
  double cost = 0;
};

HostNode host_node(double host, const std::vector<MeasuredRow>& rows,
                   const std::vector<Unknown>& others, const SoftwarePrior& prior) {
  HostNode node{host, likeliest_from({host}, rows, others, prior), 0};
  node.cost =
      cost_of(others, prior, node.fit) + square(host / prior.deviation[at(Unknown::host)]) / 2;
  const SymmetricMatrix matrix(others.size(),
                               normal_equations(rows, others, prior, node.fit).matrix);
  node.cost += matrix.log_determinant() / 2;
  node.fit.covariance[at(Unknown::host)][at(Unknown::host)] = 0;
  // The scatters hold what the unknowns leave open, which the integral counts too.
  for (const MeasuredRow& row : rows) {
    Unknowns slopes{};
    const Unknowns all =
        by_variables(log_slopes(row.at(node.fit.unknowns), node.fit.unknowns), prior);
    for (const Unknown unknown : others) slopes[at(unknown)] = all[at(unknown)];
    node.cost -= variance_along(slopes, node.fit.covariance) / 2 /
                 square(node.fit.scatter(row.predicted.kind).deviation);
  }
  return node;
}

// Hosts, as distances from the prior's mean: three of its deviations, and closer around each fit,
// by how well the slopes there tell it.
std::vector<double> hosts_around(const HostFits& fits, const std::vector<MeasuredRow>& rows,
                                 const std::vector<Unknown>& free, const SoftwarePrior& prior) {
  const std::size_t host = at(Unknown::host);
  std::vector<double> hosts;
  for (int step = -6; step <= 6; ++step) hosts.push_back(step * prior.deviation[host] / 2);
  for (const StepFit* fit : {&fits.taken, &fits.other}) {
    const Normal normal = normal_equations(rows, free, prior, *fit);
    const double deviation = std::sqrt(covariance_of(normal, free, prior)[host][host]);
    const double centre = fit->unknowns[host] - prior.mean[host];
    for (const double away :
         {-4.0, -3.0, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0}) {
      hosts.push_back(centre + away * deviation);
    }
  }
  std::sort(hosts.begin(), hosts.end());
  constexpr double same = 1e-6;
  const auto is_same = [](double one, double other) { return std::abs(one - other) < same; };
  hosts.erase(std::unique(hosts.begin(), hosts.end(), is_same), hosts.end());
  return hosts;
}

// Where rows tell the host and the level badly apart, how likely hosts are has several maxima and
// flat parts, of which the slopes at one fit say nothing. So this is the mean square away from
// the fit that is taken over all hosts, with the variance of the others at each (law of total
// variance).
Covariance over_hosts(const std::vector<MeasuredRow>& rows, const std::vector<Unknown>& free,
                      const SoftwarePrior& prior, const HostFits& fits) {
  const StepFit& fit = fits.taken;
  const std::vector<Unknown> others = beside_host(free);
  std::vector<HostNode> nodes;
  double least = std::numeric_limits<double>::infinity();
  for (const double each : hosts_around(fits, rows, free, prior)) {
    nodes.push_back(host_node(each, rows, others, prior));
    least = std::min(least, nodes.back().cost);
  }
  Covariance covariance{};
  double sum = 0;
  for (std::size_t place = 0; place < nodes.size(); ++place) {
    const HostNode& node = nodes[place];
    const double before = nodes[place == 0 ? 0 : place - 1].host;
    const double after = nodes[std::min(place + 1, nodes.size() - 1)].host;
    const double weight = (after - before) / 2 * std::exp(least - node.cost);
    sum += weight;
    // As the covariances are: of the fit's own variables.
    Unknowns away = node.fit.unknowns;
    for (std::size_t unknown = 0; unknown < unknown_count; ++unknown) {
      away[unknown] -= fit.unknowns[unknown];
    }
    if (prior.crossing_apart) away[at(Unknown::nic)] += away[at(Unknown::exchange)];
    for (std::size_t row = 0; row < unknown_count; ++row) {
      for (std::size_t column = 0; column < unknown_count; ++column) {
        covariance[row][column] +=
            weight * (node.fit.covariance[row][column] + away[row] * away[column]);
      }
    }
  }
  for (Unknowns& row : covariance) {
    for (double& each : row) each /= sum;
  }
  return covariance;
}

// The degrees of freedom that the unknowns leave each kind of rows: what they take from a row says
// nothing of the scatter.
void leave_degrees(const std::vector<MeasuredRow>& rows, const std::vector<Unknown>& free,
                   const SoftwarePrior& prior, StepFit& fit) {
  for (const MeasuredRow& row : rows) {
    Scatter& scatter = fit.scatters[static_cast<std::size_t>(row.predicted.kind)];
    const Unknowns all = by_variables(log_slopes(row.at(fit.unknowns), fit.unknowns), prior);
    Unknowns slopes{};
    for (const Unknown unknown : free) slopes[at(unknown)] = all[at(unknown)];
    scatter.degrees -=
        std::min(1.0, variance_along(slopes, fit.covariance) / square(scatter.deviation));
  }
}

}  // namespace

StepFit fit_steps(const std::vector<MeasuredRow>& rows, const std::vector<Unknown>& wanted,
                  const SoftwarePrior& prior) {
  if (rows.empty()) throw Error("calibrate: no measured step");
  const std::vector<Unknown> free = in_question(wanted, prior);
  StepFit fit;
  if (prices_host(rows, free)) {
    const HostFits fits = host_fits(rows, free, prior);
    fit = fits.taken;
    leave_degrees(rows, fits.free, prior, fit);
    fit.covariance = over_hosts(rows, free, prior, fits);
  } else {
    fit = likeliest_fit(rows, free, prior);
    leave_degrees(rows, free, prior, fit);
  }
  if (exchanges_alone(rows)) fit.covariance = with_considered(rows, free, prior, fit);
  fit.covariance = of_unknowns(fit.covariance, prior);
  return fit;
}

std::vector<double> left_out_errors(const std::vector<MeasuredRow>& rows,
                                    const std::vector<Unknown>& free, const SoftwarePrior& prior) {
  std::vector<double> errors;
  if (rows.size() < 2) return errors;
  const std::vector<Unknown> asked = in_question(free, prior);
  for (std::size_t held = 0; held < rows.size(); ++held) {
    std::vector<MeasuredRow> left = rows;
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(held));
    const StepFit fit = prices_host(left, asked) ? host_fits(left, asked, prior).taken
                                                 : likeliest_fit(left, asked, prior);
    errors.push_back(std::log(rows[held].measured_ms / rows[held].scaled_ms(fit.unknowns)));
  }
  return errors;
}

StepSoftware software_of(const StepFit& fit) {
  StepSoftware software;
  software.unknowns = fit.unknowns;
  software.covariance = fit.covariance;
  software.scatters = fit.scatters;
  return software;
}

}  // namespace moesim::uncertainty
