#include "sim/study/validation/training/step_coverage.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <map>
#include <set>

#include "sim/base/statistics.hpp"
#include "sim/study/validation/tables/band_points.hpp"
#include "sim/uncertainty/published/error_model.hpp"
#include "sim/uncertainty/statistics/coverage.hpp"
#include "sim/uncertainty/statistics/student_t.hpp"

namespace moesim::study {
namespace {

using uncertainty::Judged;
using uncertainty::Observation;
using uncertainty::same_software;

constexpr auto nominal = nominal_levels;

struct Question {
  const char* name;
  bool (*drops)(const Observation& held, const Observation& other);
  bool needs_software;  // the rest must have it
};

constexpr std::array questions = {Question{"a machine left out",
                                           [](const Observation& held, const Observation& other) {
                                             return same_software(held, other) &&
                                                    held.subject.machine == other.subject.machine;
                                           },
                                           true},
                                  Question{"a software left out", same_software, false}};

uncertainty::ErrorModel model_of(const std::vector<Observation>& left) {
  const uncertainty::Residuals residuals = uncertainty::summarised(left);
  return {residuals.groups, uncertainty::fitted_components(residuals.groups)};
}

// Coverage by nominal level, and at 90 % by software.
struct Points {
  std::map<double, std::vector<Judged>> by_level;
  std::map<std::string, std::vector<Judged>> by_software;
  std::set<std::string> groups;  // that were left out in turn
};

Points judged_points(const std::vector<Observation>& observations, const Question& question) {
  Points points;
  for (const Observation& held : observations) {
    if (uncertainty::is_profile(held.subject.software)) continue;
    std::vector<Observation> left;
    std::set<std::string> softwares;
    bool known = !question.needs_software;
    for (const Observation& other : observations) {
      if (question.drops(held, other) || uncertainty::is_profile(other.subject.software)) continue;
      left.push_back(other);
      softwares.insert(other.subject.software);
      known = known || same_software(held, other);
    }
    if (!known || left.empty()) continue;
    points.groups.insert(question.needs_software
                             ? held.subject.software + ", " + held.subject.machine
                             : held.subject.software);
    const uncertainty::Expected expected = model_of(left).at(held.subject);
    for (const double level : nominal) {
      const double reach =
          (question.needs_software ? normal_quantile((1 + level) / 2)
                                   : uncertainty::few_kinds_reach(softwares.size(), level)) *
          expected.deviation();
      const Judged judged{held.log_ratio, {expected.mean - reach, expected.mean + reach}};
      points.by_level[level].push_back(judged);
      if (level == nominal.front()) points.by_software[held.subject.software].push_back(judged);
    }
  }
  return points;
}

// The deviation of a ratio of two steps of one software, machine and model: root mean square over
// the other softwares, each of equal weight. Pairs of capacity are apart from others.
double ratio_deviation(const std::vector<Observation>& left, bool of_capacity,
                       std::size_t& softwares) {
  std::map<std::string, std::vector<double>> squares;
  for (const uncertainty::RatioGroup& group : uncertainty::summarised(left).ratios) {
    if (group.model.empty() || group.of_capacity != of_capacity) continue;
    double sum = 0;
    for (const double error : group.errors) sum += error * error;
    squares[group.software].push_back(sum / static_cast<double>(group.errors.size()));
  }
  softwares = squares.size();
  double sum = 0;
  for (const auto& [software, values] : squares) sum += mean(values);
  return squares.empty() ? 0 : std::sqrt(sum / static_cast<double>(squares.size()));
}

// Pairs of configurations, with their software left out.
Points judged_ratios(const std::vector<Observation>& observations, bool of_capacity) {
  Points points;
  for (std::size_t one = 0; one < observations.size(); ++one) {
    const Observation& held = observations[one];
    if (uncertainty::is_profile(held.subject.software)) continue;
    std::vector<Observation> left;
    for (const Observation& other : observations) {
      if (!same_software(held, other) && !uncertainty::is_profile(other.subject.software)) {
        left.push_back(other);
      }
    }
    std::size_t softwares = 0;
    const double deviation = ratio_deviation(left, of_capacity, softwares);
    if (softwares == 0) continue;
    for (std::size_t place = one + 1; place < observations.size(); ++place) {
      const Observation& other = observations[place];
      if (!(held.subject == other.subject) || held.configuration == other.configuration) continue;
      const bool is_of_capacity = !held.layout.empty() && held.layout == other.layout;
      if (is_of_capacity != of_capacity) continue;
      points.groups.insert(held.subject.software);
      for (const double level : nominal) {
        const double reach = deviation * uncertainty::few_kinds_reach(softwares, level);
        const Judged judged{held.log_ratio - other.log_ratio, {-reach, reach}};
        points.by_level[level].push_back(judged);
        if (level == nominal.front()) points.by_software[held.subject.software].push_back(judged);
      }
    }
  }
  return points;
}

void report(const std::string& what, const Points& points, Validation& validation) {
  for (const double level : nominal) {
    const auto at = points.by_level.find(level);
    if (at == points.by_level.end()) continue;
    validation.calibration.push_back(
        calibration_point(what, at->second, level, points.groups.size()));
  }
  for (const auto& [software, judged] : points.by_software) {
    const uncertainty::Coverage found = uncertainty::coverage_of(judged, nominal.front());
    validation.verdicts.push_back(
        {"steps",
         fmt::format("90 % bands, {}, {}: {:.0f} of {} inside, mean width a factor of {:.2f}", what,
                     software, found.inside * static_cast<double>(found.points), found.points,
                     std::exp(found.width)),
         std::nullopt});
  }
}

}  // namespace

void report_step_coverage(const std::vector<Observation>& observations, Validation& validation) {
  for (const Question& question : questions) {
    report(question.name, judged_points(observations, question), validation);
  }
  report("ratio of two steps of a model, their software left out",
         judged_ratios(observations, false), validation);
  report("the same, of two capacities or routers alone", judged_ratios(observations, true),
         validation);
}

}  // namespace moesim::study
