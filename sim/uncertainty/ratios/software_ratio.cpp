#include "sim/uncertainty/ratios/software_ratio.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/base/contains.hpp"
#include "sim/base/numbers.hpp"

namespace moesim::uncertainty {
namespace {

// The variance by what none of the rows had: what each step has of its own, where they differ in
// it.
double variance_of_new(const std::vector<std::string>& measured, const std::string& one,
                       const std::string& other, double deviation, bool cancels) {
  if (cancels && one == other) return 0;
  return square(deviation) *
         ((contains(measured, one) ? 0 : 1) + (contains(measured, other) ? 0 : 1));
}

}  // namespace

Unknowns applied_slopes(const StepClasses& applied, double fixed_ms) {
  const double total = applied.total();
  Unknowns slopes{};
  slopes[at(Unknown::level)] = (total - fixed_ms) / total;
  slopes[at(Unknown::experts)] = applied.experts / total;
  slopes[at(Unknown::nic)] = applied.crossing / total;
  slopes[at(Unknown::exchange)] = (applied.exchange + applied.crossing) / total;
  slopes[at(Unknown::host)] = applied.host_gain.value_or(applied.host - fixed_ms) / total;
  slopes[at(Unknown::fixed_ms)] = 1 / total;
  return slopes;
}

Band own_ratio_band(const StepSoftware& software, const OwnStep& one, const OwnStep& other,
                    const Components& components) {
  const double fixed_ms = software.unknowns[at(Unknown::fixed_ms)];
  const Unknowns first = applied_slopes(one.applied, fixed_ms);
  const Unknowns second = applied_slopes(other.applied, fixed_ms);
  Unknowns apart{};
  for (std::size_t unknown = 0; unknown < unknown_count; ++unknown) {
    apart[unknown] = first[unknown] - second[unknown];
  }
  const auto of_new = [&](bool cancels) {
    return variance_of_new(software.models, one.model, other.model, components.model, cancels) +
           variance_of_new(software.precisions, one.precision, other.precision,
                           components.precision, cancels);
  };
  const double of_ratio = variance_along(apart, software.covariance) + of_new(true);
  const double of_bands = variance_along(first, software.covariance) +
                          variance_along(second, software.covariance) + of_new(false);
  const Scatter& steps = software.scatter(RowKind::step);
  Band band;
  band.basis = contains(software.models, one.model) && contains(software.models, other.model)
                   ? Basis::own
                   : Basis::own_models;
  band.expected = {0, std::sqrt(std::min(of_ratio, of_bands)), std::sqrt(2.0) * steps.deviation};
  band.held_out = static_cast<std::size_t>(software.rows());
  band.rows = software.rows();
  band.models = static_cast<int>(software.models.size());
  band.levels = symmetric_levels(steps.degrees, band.expected.deviation());
  return band;
}

}  // namespace moesim::uncertainty
