#include "sim/study/sweep/step_band.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "sim/base/contains.hpp"
#include "sim/base/statistics.hpp"
#include "sim/cluster/measured_between.hpp"
#include "sim/step/kernels/kernel_class.hpp"
#include "sim/uncertainty/bands/fitted_software.hpp"
#include "sim/uncertainty/published/shipped_errors.hpp"
#include "sim/uncertainty/statistics/student_t.hpp"
#include "sim/uncertainty/steps/assumed_deviations.hpp"

namespace moesim::study {
namespace {

using step::StepPart;
using uncertainty::ResidualGroup;
using uncertainty::Residuals;
using uncertainty::SoftwareError;
using uncertainty::WorkClass;

constexpr const char* published_steps = "steps";  // the shipped errors of simulated steps
constexpr double unknown_calibration = 0.15;      // a software document without a group: assumed

bool is_calibrated(const profile::Profile& profile) {
  for (std::size_t kind = 0; kind < step::kernel_class_count; ++kind) {
    if (profile.software_multiplier(step::name_of(static_cast<step::KernelClass>(kind))) != 1) {
      return true;
    }
  }
  return false;
}

// Which pairs of published steps of one model.
enum class Pairs { of_capacity, other };

struct PairScatter {
  double scatter = unknown_calibration;
  std::size_t softwares = 0;  // that have such pairs
};

// The scatter of one configuration under which the published pairs of one software and model are as
// far off as they are: root mean square, each software of equal weight. `only`: "" for all that are
// no calibrated profiles.
PairScatter pair_scatter(const Residuals& published, const std::string& only, Pairs pairs) {
  std::map<std::string, std::vector<double>> squares;
  for (const uncertainty::RatioGroup& group : published.ratios) {
    const bool wanted =
        only.empty() ? !uncertainty::is_profile(group.software) : group.software == only;
    if (!wanted || group.model.empty() || group.of_capacity != (pairs == Pairs::of_capacity)) {
      continue;
    }
    double sum = 0;
    for (const double error : group.errors) sum += error * error;
    squares[group.software].push_back(sum / static_cast<double>(group.errors.size()));
  }
  PairScatter found;
  found.softwares = squares.size();
  if (squares.empty()) return found;
  double sum = 0;
  for (const auto& [software, values] : squares) sum += mean(values);
  found.scatter = std::sqrt(sum / static_cast<double>(squares.size()) / 2);
  return found;
}

constexpr double pair_level = 0.9;  // at which few kinds of software count as Student's t

// The scatter of pairs of software that was not measured: wider, as so few kinds of software are
// known.
double scatter_of_any(const Residuals& published, Pairs pairs) {
  const PairScatter found = pair_scatter(published, "", pairs);
  return found.scatter * uncertainty::few_kinds_reach(found.softwares, pair_level) /
         normal_quantile((1 + pair_level) / 2);
}

// The scatter of a software that has pairs of its own, else that of any.
double scatter_of(const Residuals& published, const std::string& software, Pairs pairs) {
  const PairScatter own = pair_scatter(published, software, pairs);
  return own.softwares > 0 ? own.scatter : scatter_of_any(published, pairs);
}

SoftwareError never_calibrated(const Residuals& published, const uncertainty::Subject& subject) {
  std::vector<ResidualGroup> groups;
  std::set<std::string> names;
  double least = 0;
  double most = 0;
  int rows = 0;
  for (const ResidualGroup& group : published.groups) {
    if (uncertainty::is_profile(group.subject.software)) continue;
    least = groups.empty() ? group.least : std::min(least, group.least);
    most = groups.empty() ? group.most : std::max(most, group.most);
    rows += group.rows;
    names.insert(group.subject.software);
    groups.push_back(group);
  }
  const uncertainty::Expected expected =
      uncertainty::ErrorModel(groups, published.components).at(subject);
  SoftwareError error;
  error.mean = expected.mean;
  error.deviation = expected.deviation();
  error.factor = uncertainty::few_kinds_reach(names.size(), pair_level) /
                 normal_quantile((1 + pair_level) / 2);
  error.scatter = scatter_of_any(published, Pairs::other);
  error.capacity_scatter = scatter_of_any(published, Pairs::of_capacity);
  error.is_any = true;
  error.of_machine = std::hypot(published.components.machine, published.components.model);
  error.name = fmt::format(
      "software that was never calibrated: {} published steps with {} kinds of it took {:.2f} to "
      "{:.2f} times their simulation",
      rows, names.size(), std::exp(least), std::exp(most));
  error.remedy = "a few measured steps of your own: moesim calibrate --command simulate";
  return error;
}

SoftwareError calibrated(const Residuals& published, const uncertainty::Subject& subject) {
  std::vector<ResidualGroup> groups;
  int rows = 0;
  for (const ResidualGroup& group : published.groups) {
    if (group.subject.software != subject.software) continue;
    groups.push_back(group);
    rows += group.rows;
  }
  SoftwareError error;
  error.remedy = "measured steps of the kind that is asked about";
  if (groups.empty()) {
    error.deviation = unknown_calibration;
    error.scatter = scatter_of_any(published, Pairs::other);
    error.capacity_scatter = scatter_of_any(published, Pairs::of_capacity);
    error.name = "multipliers of a software, assumed to be off by 15 %";
    return error;
  }
  const uncertainty::Expected expected =
      uncertainty::ErrorModel(groups, published.components).at(subject);
  error.mean = expected.mean;
  error.deviation = expected.deviation();
  error.scatter = scatter_of(published, subject.software, Pairs::other);
  error.capacity_scatter = scatter_of(published, subject.software, Pairs::of_capacity);
  error.name = fmt::format("{} measured steps decide the multipliers of this software", rows);
  return error;
}

// The fit says how its factors vary together; a model that none of its rows had adds what models
// differ by. On a cluster that none of them had exchanges are off to 25 % as before any row
// (StepSoftware::on()), and their classes share no error with those of the rows.
SoftwareError fitted(const Residuals& published, const profile::SoftwareFit& fit,
                     const std::string& model, const std::string& cluster,
                     const uncertainty::WorkShares& shares) {
  const auto inside = static_cast<std::size_t>(WorkClass::inside);
  const auto across = static_cast<std::size_t>(WorkClass::across);
  const bool is_new = !contains(fit.models, model);
  const bool is_elsewhere = !fit.clusters.empty() && !contains(fit.clusters, cluster);
  const double exchange = shares[inside] + shares[across];
  const double of_exchanges = is_elsewhere ? uncertainty::exchange_deviation * exchange : 0;
  const double more = std::hypot(is_new ? published.components.model : 0, of_exchanges);
  SoftwareError error = uncertainty::fitted_error(fit, exchange, more);
  error.of_exchanges = of_exchanges;
  if (is_elsewhere) error.fitted_shares[inside] = error.fitted_shares[across] = 0;
  error.name = fmt::format("{} measured step{} of one's own decide{} the level of this software{}",
                           fit.rows, fit.rows == 1 ? "" : "s", fit.rows == 1 ? "s" : "",
                           is_new         ? ", none of this model"
                           : is_elsewhere ? ", none on this cluster"
                                          : "");
  error.capacity_scatter = std::min(error.scatter, scatter_of_any(published, Pairs::of_capacity));
  error.remedy = is_new         ? "a measured step of this model in moesim calibrate"
                 : is_elsewhere ? "a measured step on this cluster in moesim calibrate"
                                : "more of one's own steps in moesim calibrate";
  return error;
}

}  // namespace

SoftwareError software_error(const scenario::Scenario& scenario,
                             const uncertainty::WorkShares& shares) {
  const Residuals& published = uncertainty::shipped_residuals(published_steps);
  const auto& software = scenario.profile->software();
  if (software && software->fit) {
    SoftwareError error =
        fitted(published, *software->fit, scenario.model->name, scenario.cluster->name, shares);
    error.has_measured_exchanges = cluster::measured_between_domains(*scenario.cluster);
    return error;
  }
  const bool is_known = is_calibrated(*scenario.profile);
  uncertainty::Subject subject;
  subject.machine = scenario.profile->device().name;
  subject.model = scenario.model->name;  // however it was typed
  if (is_known) subject.software = uncertainty::profile_software(scenario.profile->name());
  SoftwareError error =
      is_known ? calibrated(published, subject) : never_calibrated(published, subject);
  error.has_measured_exchanges = cluster::measured_between_domains(*scenario.cluster);
  return error;
}

CapacityPairs published_capacity_pairs() {
  const Residuals& published = uncertainty::shipped_residuals(published_steps);
  CapacityPairs found;
  found.scatter = scatter_of_any(published, Pairs::of_capacity);
  for (const uncertainty::RatioGroup& group : published.ratios) {
    if (group.of_capacity && !uncertainty::is_profile(group.software)) found.pairs += group.pairs;
  }
  return found;
}

uncertainty::WorkShares work_shares(const scenario::Scenario& scenario,
                                    const std::array<double, step::part_count>& parts_ms) {
  const int domain = scenario.cluster->gpus_per_domain;
  uncertainty::WorkShares shares{};
  const double total = std::accumulate(parts_ms.begin(), parts_ms.end(), 0.0);
  if (total <= 0) return shares;
  const auto work_of = [&](StepPart part) {
    switch (part) {
      case StepPart::attention:
      case StepPart::dense_ffn:
      case StepPart::expert:
      case StepPart::rectify:
        return WorkClass::products;
      case StepPart::exposed_exchange:
        return scenario.expert_parallel > domain ? WorkClass::across : WorkClass::inside;
      case StepPart::gradient:
        return scenario.gpus > domain ? WorkClass::across : WorkClass::inside;
      default:
        return WorkClass::memory;
    }
  };
  for (std::size_t part = 0; part < step::part_count; ++part) {
    shares[static_cast<std::size_t>(work_of(static_cast<StepPart>(part)))] +=
        parts_ms[part] / total;
  }
  return shares;
}

}  // namespace moesim::study
