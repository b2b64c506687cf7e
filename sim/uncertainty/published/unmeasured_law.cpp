#include "sim/uncertainty/published/unmeasured_law.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "sim/base/numbers.hpp"
#include "sim/base/statistics.hpp"
#include "sim/uncertainty/published/error_model.hpp"

namespace moesim::uncertainty {
namespace {

double size_of(const Observation& observation, const std::string& name) {
  const StepTrait* trait = trait_of(observation.traits, name);
  return trait == nullptr ? 0 : trait->size;
}

std::vector<Observation> chosen(const std::vector<Observation>& observations,
                                const std::vector<std::size_t>& places) {
  std::vector<Observation> found;
  for (const std::size_t place : places) found.push_back(observations[place]);
  return found;
}

// What is left of the log ratios of a group, and the share of the parts.
struct Group {
  std::vector<double> residuals;
  std::vector<double> shares;
  std::set<std::string> configurations;
  double variance = 0;
};

}  // namespace

std::vector<TraitQuestion> trait_questions(const std::vector<Observation>& observations) {
  std::map<std::string, std::set<double>> sizes;
  for (const Observation& each : observations) {
    for (const StepTrait& trait : each.traits) sizes[trait.name].insert(trait.size);
  }
  std::vector<TraitQuestion> questions;
  for (const auto& [name, all] : sizes) {
    for (const double size : all) {
      TraitQuestion question{name, size, {}, {}};
      double most = 0;  // of those that are left
      for (std::size_t at = 0; at < observations.size(); ++at) {
        const double own = size_of(observations[at], name);
        (own < size ? question.others : question.held).push_back(at);
        if (own < size) most = std::max(most, own);
      }
      const bool is_beyond = size > reach_of(name) * most;
      if (is_beyond && !question.others.empty()) questions.push_back(std::move(question));
    }
  }
  return questions;
}

std::vector<TraitError> trait_errors(const std::vector<Observation>& observations) {
  std::vector<TraitError> errors;
  for (const TraitQuestion& question : trait_questions(observations)) {
    const std::vector<ResidualGroup> left =
        summarised(chosen(observations, question.others)).groups;
    const ErrorModel model(left, fitted_components(left));
    std::map<std::tuple<std::string, std::string, std::string, bool>, Group> groups;
    TraitError error{question.trait, question.size};
    for (const std::size_t place : question.held) {
      const Observation& held = observations[place];
      const Subject& subject = held.subject;
      const bool known = std::any_of(left.begin(), left.end(), [&](const ResidualGroup& other) {
        return other.subject.software == subject.software;
      });
      if (!known) continue;
      const Expected expected = model.at(subject);
      Group& group =
          groups[{subject.software, subject.machine, subject.model, subject.low_precision}];
      group.residuals.push_back(held.log_ratio - expected.mean);
      group.shares.push_back(trait_of(held.traits, question.trait)->share);
      group.configurations.insert(held.configuration);
      const auto configurations = static_cast<double>(group.configurations.size());
      group.variance = square(expected.latent) + square(expected.scatter) / configurations;
      ++error.rows;
      error.share += group.shares.back();
    }
    if (error.rows == 0) continue;
    error.share /= error.rows;
    double weight = 0;
    for (const auto& [subject, group] : groups) {
      const double share = mean(group.shares);
      weight += square(share) / group.variance;
      error.error += share * mean(group.residuals) / group.variance;
    }
    if (weight <= 0) continue;
    error.error /= weight;
    error.variance = 1 / weight;
    errors.push_back(error);
  }
  return errors;
}

UnmeasuredLaw law_of(const std::vector<TraitError>& errors) {
  std::map<std::string, int> sizes;  // by trait
  for (const TraitError& each : errors) ++sizes[each.trait];
  constexpr double least = 0.01, most = 3, step = 1.02;
  UnmeasuredLaw law{0, static_cast<int>(sizes.size())};
  double highest = -std::numeric_limits<double>::infinity();
  for (double deviation = least; deviation < most; deviation *= step) {
    double height = 0;
    for (const TraitError& each : errors) {
      const double variance = square(deviation) + each.variance;
      height -= (std::log(variance) + square(each.error) / variance) / sizes.at(each.trait);
    }
    if (height <= highest) continue;
    highest = height;
    law.deviation = deviation;
  }
  return law;
}

UnmeasuredLaw never_in_sight(const UnmeasuredLaw& law) {
  constexpr double farther_off = 2;
  return {farther_off * law.deviation, law.traits};
}

}  // namespace moesim::uncertainty
