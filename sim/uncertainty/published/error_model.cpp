#include "sim/uncertainty/published/error_model.hpp"

#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "sim/base/numbers.hpp"

namespace moesim::uncertainty {
namespace {

// Before any step was measured. Kernels measured alone are faster than the same ones in a step, so
// that steps take longer than predicted; by how much is assumed.
constexpr double prior_mean = 0.2;
constexpr double prior_component = 0.2;
// The scatter of configurations, known as if from so many of them: assumed.
constexpr double prior_scatter = 0.12;
constexpr double prior_scatter_rows = 4;
// Variance of the median of many normal values over that of their mean.
constexpr double median_variance = std::numbers::pi / 2;

double shared(const Subject& one, const Subject& other, const Components& parts) {
  double sum = square(parts.all);
  if (one.low_precision == other.low_precision) sum += square(parts.precision);
  if (one.software != other.software || one.software.empty()) return sum;
  sum += square(parts.software);
  if (!same_machine(one, other)) return sum;
  sum += square(parts.machine);
  return one.model == other.model ? sum + square(parts.model) : sum;
}

// The covariance of a subject with itself, also where its software is not known.
double alone(const Components& parts) {
  return square(parts.all) + square(parts.precision) + square(parts.software) +
         square(parts.machine) + square(parts.model);
}

std::map<std::string, double> scatters(const std::vector<ResidualGroup>& groups) {
  struct Sum {
    double squares = prior_scatter_rows * square(prior_scatter);
    double rows = prior_scatter_rows;
  };
  std::map<std::string, Sum> sums;
  for (const ResidualGroup& group : groups) {
    Sum& sum = sums[group.subject.software];
    sum.squares += (group.rows - 1) * square(group.spread());
    sum.rows += group.rows - 1;
  }
  std::map<std::string, double> found;
  for (const auto& [software, sum] : sums) found[software] = std::sqrt(sum.squares / sum.rows);
  return found;
}

SymmetricMatrix covariance(const std::vector<ResidualGroup>& groups, const Components& components,
                           const std::map<std::string, double>& scatter) {
  const std::size_t size = groups.size();
  Vector rows(size * size);
  for (std::size_t row = 0; row < size; ++row) {
    const ResidualGroup& one = groups[row];
    for (std::size_t column = 0; column < row; ++column) {
      rows[row * size + column] = shared(one.subject, groups[column].subject, components);
    }
    rows[row * size + row] = alone(components) + median_variance *
                                                     square(scatter.at(one.subject.software)) /
                                                     one.configurations;
  }
  return {size, std::move(rows)};
}

}  // namespace

double Expected::deviation() const { return std::hypot(latent, scatter); }

ErrorModel::ErrorModel(std::vector<ResidualGroup> groups, const Components& components)
    : groups_(std::move(groups)),
      components_(components),
      scatter_(scatters(groups_)),
      covariance_(covariance(groups_, components_, scatter_)) {
  for (const ResidualGroup& group : groups_) centred_.push_back(group.median() - prior_mean);
  weights_ = covariance_.solve(centred_);
}

// The scatter of a software; without a measurement, the root of the mean square of the others'.
double ErrorModel::scatter_of(const std::string& software) const {
  if (const auto found = scatter_.find(software); found != scatter_.end()) return found->second;
  if (scatter_.empty()) return prior_scatter;
  double sum = 0;
  for (const auto& [name, value] : scatter_) sum += square(value);
  return std::sqrt(sum / static_cast<double>(scatter_.size()));
}

Expected ErrorModel::at(const Subject& subject) const {
  Vector with;
  for (const ResidualGroup& group : groups_) {
    with.push_back(shared(group.subject, subject, components_));
  }
  Expected expected;
  expected.mean = prior_mean + dot(with, weights_);
  const double variance = alone(components_) - dot(with, covariance_.solve(with));
  expected.latent = std::sqrt(std::max(variance, 0.0));
  expected.scatter = scatter_of(subject.software);
  return expected;
}

double ErrorModel::log_posterior() const {
  double sum = -dot(centred_, weights_) / 2 - covariance_.log_determinant() / 2;
  for (const double part : {components_.all, components_.software, components_.machine,
                            components_.precision, components_.model}) {
    sum -= square(std::log(part / prior_component)) / 2;
  }
  return sum;
}

Components fitted_components(const std::vector<ResidualGroup>& groups) {
  constexpr std::array parts = {&Components::all, &Components::software, &Components::machine,
                                &Components::precision, &Components::model};
  constexpr int rounds = 6;
  constexpr std::array factors = {0.6, 0.85, 1.18, 1.6};
  Components best;
  for (double Components::*part : parts) best.*part = prior_component;
  double highest = ErrorModel(groups, best).log_posterior();
  for (int round = 0; round < rounds; ++round) {
    for (double Components::*part : parts) {
      for (const double factor : factors) {
        Components tried = best;
        tried.*part *= factor;
        const double height = ErrorModel(groups, tried).log_posterior();
        if (height <= highest) continue;
        highest = height;
        best = tried;
      }
    }
  }
  return best;
}

}  // namespace moesim::uncertainty
