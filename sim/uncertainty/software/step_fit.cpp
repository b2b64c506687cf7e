#include "sim/uncertainty/software/step_fit.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/numbers.hpp"
#include "sim/uncertainty/software/host_fits.hpp"
#include "sim/uncertainty/software/penalised_fit.hpp"

namespace moesim::uncertainty {
namespace {

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

// Whether one configuration alone says what the level is.
bool sets_level(const std::vector<MeasuredRow>& rows, const std::vector<Unknown>& free) {
  const auto is_exchange = [](const MeasuredRow& row) {
    return row.predicted.kind == RowKind::exchange;
  };
  return holds(free, Unknown::level) && std::count_if(rows.begin(), rows.end(), is_exchange) + 1 ==
                                            static_cast<std::ptrdiff_t>(rows.size());
}

// One configuration cannot say whether it is its level that is off or its scatter. What is asked
// for is mostly like it, so the level is as it says, whatever is known before. That still says how
// far the level may be from there: the covariance, of `fit` by the prior, becomes the mean square
// away from the level that is taken.
void take_level(const std::vector<MeasuredRow>& rows, const std::vector<Unknown>& free,
                const SoftwarePrior& prior, StepFit& fit) {
  const StepFit told = likeliest_fit(rows, free, with_open_level(prior));
  for (std::size_t row = 0; row < unknown_count; ++row) {
    for (std::size_t column = 0; column < unknown_count; ++column) {
      fit.covariance[row][column] +=
          (told.unknowns[row] - fit.unknowns[row]) * (told.unknowns[column] - fit.unknowns[column]);
    }
  }
  fit.unknowns = told.unknowns;
  fit.effective = told.effective;
  fit.rival = told.rival;
}

// What else fits nearly as well as `fit`, with far other exchanges, if anything does: the best fit
// with the level, or with exchanges, at the prior's mean.
std::optional<Unknowns> exchange_rival(const std::vector<MeasuredRow>& rows,
                                       std::vector<Unknown> free, const SoftwarePrior& prior,
                                       const StepFit& fit) {
  std::optional<Unknowns> rival;
  if (!holds(free, Unknown::level) || !holds(free, Unknown::exchange)) return rival;
  const auto without = [&](Unknown unknown) {
    std::vector<Unknown> others = free;
    others.erase(std::remove(others.begin(), others.end(), unknown), others.end());
    return others;
  };
  const double host = fit.unknowns[at(Unknown::host)] - prior.mean[at(Unknown::host)];
  if (host == 0) free = without(Unknown::host);
  double most = cost_of(rows, free, prior, likeliest_from({host}, rows, free, prior)) + fit_alike;
  for (const Unknown kept : {Unknown::level, Unknown::exchange}) {
    const std::vector<Unknown> others = without(kept);
    const StepFit other = likeliest_from({host}, rows, others, prior);
    const double cost = cost_of(rows, others, prior, other);
    const double away =
        std::abs(other.unknowns[at(Unknown::exchange)] - fit.unknowns[at(Unknown::exchange)]);
    if (away < factors_apart || cost > most) continue;
    most = cost;
    rival = other.unknowns;
  }
  return rival;
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
  if (sets_level(rows, free)) take_level(rows, free, prior, fit);
  if (!fit.rival) fit.exchange_rival = exchange_rival(rows, free, prior, fit);
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
    const StepFit fit =
        likeliest_fit(left, asked, sets_level(left, asked) ? with_open_level(prior) : prior);
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
