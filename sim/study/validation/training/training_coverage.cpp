#include "sim/study/validation/training/training_coverage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "sim/study/validation/tables/band_points.hpp"
#include "sim/uncertainty/published/step_errors.hpp"
#include "sim/uncertainty/published/unmeasured_law.hpp"
#include "sim/uncertainty/statistics/coverage.hpp"
#include "sim/uncertainty/steps/step_distance.hpp"

namespace moesim::study {
namespace {

using uncertainty::Basis;
using uncertainty::Coverage;
using uncertainty::Judged;
using uncertainty::Observation;
using uncertainty::same_software;
using uncertainty::StepErrors;

constexpr std::size_t least_points = 20;
constexpr double least_share = 0.1;  // of a step, for its trait to matter
constexpr auto nominal = nominal_levels;

// What is left out so that one observation is not known.
struct Question {
  const char* name;
  Basis least;  // the least that a band may be based on, to be one of this kind
  Basis most;
  bool (*drops)(const Observation& held, const Observation& other);
};

constexpr std::array questions = {
    Question{"a configuration left out", Basis::machine, Basis::model,
             [](const Observation& held, const Observation& other) {
               return held.subject == other.subject && held.configuration == other.configuration;
             }},
    Question{"a model left out", Basis::machine, Basis::machine,
             [](const Observation& held, const Observation& other) {
               return same_software(held, other) && held.subject.model == other.subject.model;
             }},
    Question{"a machine and the model left out", Basis::software, Basis::software,
             [](const Observation& held, const Observation& other) {
               return same_software(held, other) &&
                      (held.subject.machine == other.subject.machine ||
                       held.subject.model == other.subject.model);
             }},
    Question{"a software left out", Basis::nothing, Basis::nothing,
             [](const Observation& held, const Observation& other) {
               return same_software(held, other);
             }}};

StepErrors errors_without(const std::vector<Observation>& observations, const Observation& held,
                          const Question& question) {
  std::vector<Observation> left;
  for (const Observation& each : observations) {
    if (!question.drops(held, each)) left.push_back(each);
  }
  uncertainty::Residuals residuals = uncertainty::summarised(left);
  residuals.name = "training";
  residuals.components = uncertainty::fitted_components(residuals.groups);
  return StepErrors(std::move(residuals));
}

struct Points {
  std::map<double, std::vector<Judged>> judged;           // by nominal level
  std::map<std::string, std::vector<Judged>> by_machine;  // at 90 %
  std::set<std::string> groups;                           // that were left out in turn
};

Points judged_points(const std::vector<Observation>& observations, const Question& question) {
  Points points;
  std::vector<std::optional<StepErrors>> known(observations.size());
  for (std::size_t at = 0; at < observations.size(); ++at) {
    const Observation& held = observations[at];
    // What leaves out the same rows needs no other bands.
    std::size_t first = 0;
    while (!question.drops(held, observations[first]) || !question.drops(observations[first], held))
      ++first;
    const bool by_pairs = question.least == Basis::software;  // of a machine and a model
    const std::string group =
        by_pairs ? held.subject.software + ", " + held.subject.machine : fmt::format("{}", first);
    if (by_pairs) first = at;
    try {
      if (!known[first]) known[first].emplace(errors_without(observations, held, question));
      const uncertainty::Band band =
          known[first]->band(held.subject, {nominal.begin(), nominal.end()}, {},
                             held.moves.value_or(uncertainty::AssumedMoves()));
      if (band.basis > question.least || band.basis < question.most) continue;
      points.groups.insert(group);
      for (const uncertainty::BandLevel& each : band.levels) {
        points.judged[each.level].push_back({held.log_ratio, each.log_ratios});
        if (each.level == nominal.front()) {
          points.by_machine[held.subject.machine + ", " + held.subject.software].push_back(
              {held.log_ratio, each.log_ratios});
        }
      }
    } catch (const uncertainty::TooFewGroups&) {
      continue;
    }
  }
  return points;
}

// Adds the points of `judged` at one level; where 90 % is possible and there are enough of them,
// with a verdict.
void add_level(const std::string& what, const std::vector<Judged>& judged, double level,
               std::size_t groups, Validation& validation) {
  const Coverage found = uncertainty::coverage_of(judged, level);
  validation.calibration.push_back(calibration_point(what, judged, level, groups));
  if (level != nominal.front() || judged.size() < least_points) return;
  const ShareVerdict verdict = verdict_of_share(found.inside, groups);
  validation.verdicts.push_back(
      {"training",
       fmt::format("90 % bands, {}: {:.0f} of {} inside ({:.0f} %), bar 85 to 95 %; {}", what,
                   found.inside * static_cast<double>(found.points), found.points,
                   100 * found.inside, verdict.groups),
       verdict.met});
}

// Adds the coverage on one machine, whose groups alone are too few for a bar.
void add_machine(const std::string& what, const std::vector<Judged>& judged,
                 Validation& validation) {
  const Coverage found = uncertainty::coverage_of(judged, nominal.front());
  validation.verdicts.push_back(
      {"training",
       fmt::format("90 % bands, {}: {:.0f} of {} inside ({:.0f} %), mean width a factor of {:.2f}",
                   what, found.inside * static_cast<double>(found.points), found.points,
                   100 * found.inside, std::exp(found.width)),
       std::nullopt});
}

// Pairs of configurations of one software on one machine, in any releases, with the
// machine left out; of one model or of two. `known_software`: it ran on other machines, too.
void judge_ratios(const std::vector<Observation>& observations, bool same_model,
                  bool known_software, Validation& validation) {
  std::map<double, std::vector<Judged>> judged;
  std::map<std::pair<std::string, std::string>, std::optional<StepErrors>> known;
  std::set<std::string> left_out;  // machines in a software
  for (std::size_t one = 0; one < observations.size(); ++one) {
    for (std::size_t other = one + 1; other < observations.size(); ++other) {
      const Observation& a = observations[one];
      const Observation& b = observations[other];
      if (!same_software(a, b) || a.configuration == b.configuration ||
          a.subject.machine != b.subject.machine ||
          (a.subject.model == b.subject.model) != same_model) {
        continue;
      }
      auto& errors = known[{a.subject.software, a.subject.machine}];
      if (!errors) {
        errors.emplace(errors_without(observations, a,
                                      {"", Basis::nothing, Basis::nothing,
                                       [](const Observation& held, const Observation& each) {
                                         return same_software(held, each) &&
                                                held.subject.machine == each.subject.machine;
                                       }}));
      }
      const auto& groups = errors->residuals().groups;
      const bool is_known = std::any_of(groups.begin(), groups.end(), [&](const auto& group) {
        return group.subject.software == a.subject.software;
      });
      if (is_known != known_software) continue;
      left_out.insert(a.subject.software + ", " + a.subject.machine);
      const double distance = uncertainty::step_distance(a.parts, b.parts);
      try {
        for (const uncertainty::BandLevel& each :
             errors->ratio_band(a.subject.software, same_model, distance).levels) {
          judged[each.level].push_back({a.log_ratio - b.log_ratio, each.log_ratios});
        }
      } catch (const uncertainty::TooFewGroups&) {
        continue;
      }
    }
  }
  const std::string what =
      fmt::format("ratio of two steps of {}, {} left out", same_model ? "a model" : "two models",
                  known_software ? "their machine" : "their software");
  for (auto each = judged.rbegin(); each != judged.rend(); ++each) {
    add_level(what, each->second, each->first, left_out.size(), validation);
  }
}

// Pairs of one release of a software on two machines, with what is left out of the pairs that their
// band is made of: all of these two machines, or all of either.
void judge_machine_ratios(const std::vector<Observation>& observations, bool either,
                          Validation& validation) {
  std::map<double, std::vector<Judged>> judged;
  std::map<std::pair<std::string, std::string>, std::optional<StepErrors>> known;
  std::set<std::string> left_out;
  uncertainty::Residuals all = uncertainty::summarised(observations);
  all.name = "training";
  all.components = uncertainty::fitted_components(all.groups);
  for (std::size_t one = 0; one < observations.size(); ++one) {
    for (std::size_t other = one + 1; other < observations.size(); ++other) {
      const Observation& a = observations[one];
      const Observation& b = observations[other];
      if (!uncertainty::is_machine_pair(a, b)) continue;
      const std::string& first = std::min(a.subject.machine, b.subject.machine);
      const std::string& second = std::max(a.subject.machine, b.subject.machine);
      auto& errors = known[{first, second}];
      if (!errors) {
        uncertainty::Residuals left = all;
        std::erase_if(left.machine_ratios, [&](const uncertainty::MachinePairs& group) {
          const auto has = [&](const std::string& machine) {
            return group.machine == machine || group.other == machine;
          };
          return either ? has(first) || has(second) : has(first) && has(second);
        });
        errors.emplace(std::move(left));
      }
      const uncertainty::AssumedMoves moves =
          a.moves && b.moves ? moves_between(*a.moves, *b.moves) : uncertainty::AssumedMoves();
      try {
        for (const uncertainty::BandLevel& each :
             errors
                 ->machine_ratio_band(a.subject.software, moves,
                                      uncertainty::share_distance(a.parts, b.parts))
                 .levels) {
          judged[each.level].push_back({a.log_ratio - b.log_ratio, each.log_ratios});
        }
        left_out.insert(fmt::format("{}, {}", first, second));
      } catch (const uncertainty::TooFewGroups&) {
        continue;
      }
    }
  }
  for (auto each = judged.rbegin(); each != judged.rend(); ++each) {
    add_level(fmt::format("ratio of two machines, {} left out",
                          either ? "all pairs with either" : "their pairs"),
              each->second, each->first, left_out.size(), validation);
  }
}

// Steps with a trait that no other has and that matters, by the bands of those others; without and
// with what the law of unmeasured traits, of the others alone, makes them wider by. No bar: the
// prices of their parts were made with these steps in sight.
void judge_traits(const std::vector<Observation>& observations, Validation& validation) {
  struct Bands {
    std::map<double, std::vector<Judged>> without;
    std::map<double, std::vector<Judged>> with;
  } bands;
  std::set<std::string> traits;
  for (const uncertainty::TraitQuestion& question : uncertainty::trait_questions(observations)) {
    std::vector<Observation> left;
    for (const std::size_t place : question.others) left.push_back(observations[place]);
    uncertainty::Residuals residuals = uncertainty::summarised(left);
    residuals.name = "training";
    residuals.components = uncertainty::fitted_components(residuals.groups);
    residuals.unmeasured = uncertainty::law_of(uncertainty::trait_errors(left));
    const StepErrors errors(std::move(residuals));
    const auto judge = [&](const Observation& held, const std::vector<uncertainty::StepTrait>& own,
                           std::map<double, std::vector<Judged>>& judged) {
      const uncertainty::Band band =
          errors.band(held.subject, {nominal.begin(), nominal.end()}, own);
      if (band.basis > Basis::machine) return false;  // too little else is known
      for (const uncertainty::BandLevel& each : band.levels) {
        judged[each.level].push_back({held.log_ratio, each.log_ratios});
      }
      return true;
    };
    for (const std::size_t place : question.held) {
      const Observation& held = observations[place];
      if (uncertainty::trait_of(held.traits, question.trait)->share < least_share) continue;
      try {
        if (!judge(held, {}, bands.without)) continue;
        judge(held, held.traits, bands.with);
        traits.insert(question.trait);
      } catch (const uncertainty::TooFewGroups&) {
        continue;
      }
    }
  }
  for (const auto& [name, judged] :
       {std::pair("a trait left out, as if it were measured", &bands.without),
        std::pair("a trait left out", &bands.with)}) {
    for (auto each = judged->rbegin(); each != judged->rend(); ++each) {
      validation.calibration.push_back(
          calibration_point(name, each->second, each->first, traits.size()));
    }
  }
}

}  // namespace

void report_coverage(const std::vector<Observation>& observations, Validation& validation) {
  for (const Question& question : questions) {
    const Points points = judged_points(observations, question);
    for (const double level : nominal) {
      const auto found = points.judged.find(level);
      if (found != points.judged.end()) {
        add_level(question.name, found->second, level, points.groups.size(), validation);
      }
    }
    for (const auto& [machine, judged] : points.by_machine) {
      add_machine(fmt::format("{}, {}", question.name, machine), judged, validation);
    }
  }
  judge_traits(observations, validation);
  for (const bool known_software : {true, false}) {
    judge_ratios(observations, true, known_software, validation);
    judge_ratios(observations, false, known_software, validation);
  }
  for (const bool either : {false, true}) judge_machine_ratios(observations, either, validation);
}

}  // namespace moesim::study
