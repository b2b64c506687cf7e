#include "sim/study/validation/training/training_calibration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "sim/base/random.hpp"
#include "sim/base/statistics.hpp"
#include "sim/uncertainty/published/step_errors.hpp"
#include "sim/uncertainty/statistics/coverage.hpp"

namespace moesim::study {
namespace {

using uncertainty::Judged;
using uncertainty::MeasuredRow;
using uncertainty::Observation;

constexpr int draws = 40;
constexpr std::size_t least_configurations = 7;

const char* precision_name(const uncertainty::Subject& subject) {
  return subject.low_precision ? "low" : "bf16";
}

// `count` rows of different configurations.
std::vector<std::size_t> drawn_rows(const std::vector<Observation>& observations,
                                    const std::vector<std::size_t>& members, std::size_t count,
                                    int draw) {
  std::vector<std::pair<double, std::size_t>> order;
  Stream stream({1, Purpose::bootstrap, static_cast<std::uint32_t>(draw), 0, 0});
  for (const std::size_t member : members) order.emplace_back(stream.uniform(), member);
  std::sort(order.begin(), order.end());
  std::vector<std::size_t> rows;
  std::set<std::string> configurations;
  for (const auto& [key, member] : order) {
    if (rows.size() < count && configurations.insert(observations[member].configuration).second) {
      rows.push_back(member);
    }
  }
  return rows;
}

struct Beside {
  std::vector<double> before;  // |predicted / measured - 1|
  std::vector<double> after;
  std::vector<Judged> judged;  // at 90 %
};

// As train finds the gain of a step's host.
uncertainty::StepClasses with_host_gain(const MeasuredRow& step,
                                        const uncertainty::StepSoftware& software) {
  const double reach = software.host_reach();
  const auto total_ms = [&](double log_factor) {
    return step.hosts.at(software.host_factor() * std::exp(log_factor)).total();
  };
  uncertainty::StepClasses classes = step.at(software.unknowns);
  classes.host_gain = (total_ms(reach) - total_ms(-reach)) / (2 * reach);
  return classes;
}

void judge(const std::vector<Observation>& observations, const std::vector<MeasuredRow>& steps,
           const uncertainty::StepErrors& others, const std::vector<std::size_t>& members,
           const std::vector<std::size_t>& known, Beside& outcome) {
  std::vector<MeasuredRow> rows;
  std::set<std::string> models;
  std::set<std::string> precisions;
  std::set<std::string> configurations;
  std::vector<uncertainty::SoftwarePrior> priors;
  for (const std::size_t row : known) {
    const Observation& observation = observations[row];
    rows.push_back(steps[row]);
    models.insert(observation.subject.model);
    precisions.insert(precision_name(observation.subject));
    configurations.insert(observation.configuration);
    priors.push_back(uncertainty::prior_of(others, observation.subject));
  }
  const uncertainty::SoftwarePrior prior = uncertainty::mixture_of(priors);
  const auto fit = uncertainty::fit_steps(rows, uncertainty::carried_by(rows, prior), prior);
  uncertainty::StepSoftware software = uncertainty::software_of(fit);
  software.prices_host = true;
  software.models = {models.begin(), models.end()};
  software.precisions = {precisions.begin(), precisions.end()};
  const uncertainty::Components& parts = others.residuals().components;
  for (const std::size_t row : members) {
    const Observation& observation = observations[row];
    if (configurations.count(observation.configuration) != 0) continue;
    const MeasuredRow& step = steps[row];
    const double scaled = step.scaled_ms(fit.unknowns);
    outcome.before.push_back(std::abs(step.predicted.total() / step.measured_ms - 1));
    outcome.after.push_back(std::abs(scaled / step.measured_ms - 1));
    const uncertainty::Band band =
        software.band(with_host_gain(step, software), observation.subject,
                      precision_name(observation.subject), parts.model, parts.precision);
    outcome.judged.push_back({std::log(step.measured_ms / scaled), band.widest().log_ratios});
  }
}

}  // namespace

void report_calibration(const std::vector<Observation>& observations,
                        const std::vector<MeasuredRow>& steps, Validation& validation) {
  std::map<std::tuple<std::string, std::string, bool>, std::vector<std::size_t>> places;
  for (std::size_t row = 0; row < observations.size(); ++row) {
    const uncertainty::Subject& subject = observations[row].subject;
    places[{subject.software, subject.machine, subject.low_precision}].push_back(row);
  }
  for (const auto& [place, members] : places) {
    std::set<std::string> configurations;
    std::vector<Observation> other_software;
    for (const std::size_t member : members) {
      configurations.insert(observations[member].configuration);
    }
    for (const Observation& each : observations) {
      if (each.subject.software != std::get<0>(place)) other_software.push_back(each);
    }
    if (configurations.size() < least_configurations) continue;
    uncertainty::Residuals residuals = uncertainty::summarised(other_software);
    residuals.components = uncertainty::fitted_components(residuals.groups);
    const uncertainty::StepErrors others(residuals);
    for (const std::size_t count : {std::size_t{3}, std::size_t{6}}) {
      Beside outcome;
      for (int draw = 0; draw < draws; ++draw) {
        judge(observations, steps, others, members, drawn_rows(observations, members, count, draw),
              outcome);
      }
      const uncertainty::Coverage coverage = uncertainty::coverage_of(outcome.judged, 0.9);
      validation.verdicts.push_back(
          {"training",
           fmt::format("{} on {}, {}, calibrated with {} of {} configurations: the others {:.0f} % "
                       "off in the median, before {:.0f} %; {:.0f} % inside 90 % bands, mean "
                       "width a factor of {:.2f}",
                       std::get<0>(place), std::get<1>(place), std::get<2>(place) ? "FP8" : "bf16",
                       count, configurations.size(), 100 * median(outcome.after),
                       100 * median(outcome.before), 100 * coverage.inside,
                       std::exp(coverage.width)),
           std::nullopt});
    }
  }
}

}  // namespace moesim::study
