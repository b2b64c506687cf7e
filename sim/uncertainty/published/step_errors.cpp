#include "sim/uncertainty/published/step_errors.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/statistics.hpp"
#include "sim/uncertainty/statistics/student_t.hpp"
#include "sim/uncertainty/steps/step_distance.hpp"

namespace moesim::uncertainty {
namespace {

constexpr double least_wanted = 0.8;  // of ratios, before other software is asked

bool same_software(const Subject& one, const Subject& other) {
  return one.software == other.software;
}
bool same_place(const Subject& one, const Subject& other) {
  return same_software(one, other) && same_machine(one, other);
}

template <class Keep>
std::vector<ResidualGroup> only(const std::vector<ResidualGroup>& groups, const Keep& keep) {
  std::vector<ResidualGroup> kept;
  for (const ResidualGroup& group : groups) {
    if (keep(group.subject)) kept.push_back(group);
  }
  return kept;
}

// The band at each level that so many groups allow.
std::vector<BandLevel> levels_of(const std::vector<HeldOut>& held_out,
                                 const std::vector<double>& wanted) {
  std::vector<BandLevel> found;
  for (const double level : wanted) {
    if (!level_allowed(held_out.size(), level)) continue;
    found.push_back({level, jackknife_plus(held_out, level)});
  }
  return found;
}

// Each level at least as wide as the same one of `narrower`, and as the next.
void widen(std::vector<BandLevel>& wide, const std::vector<BandLevel>& narrower) {
  const auto hull = [](Interval& one, const Interval& other) {
    one = {std::min(one.low, other.low), std::max(one.high, other.high)};
  };
  for (BandLevel& each : wide) {
    for (const BandLevel& other : narrower) {
      if (other.level <= each.level) hull(each.log_ratios, other.log_ratios);
    }
  }
}

// Each level no wider than the same one of `other`. Whether that changed the widest.
bool narrow(std::vector<BandLevel>& levels, const std::vector<BandLevel>& other) {
  const Interval before = levels.front().log_ratios;
  for (BandLevel& each : levels) {
    for (const BandLevel& candidate : other) {
      const bool narrower = candidate.log_ratios.width() < each.log_ratios.width();
      if (candidate.level == each.level && narrower) each = candidate;
    }
  }
  widen(levels, std::vector(levels));  // each within the one before it
  return levels.front().log_ratios != before;
}

// Around `mean`, of a software of which nothing is known: Student's t with as many degrees of
// freedom as there are kinds of software that decide the deviation.
std::vector<BandLevel> of_any_software(double mean, double deviation, std::size_t softwares,
                                       const std::vector<BandLevel>& levels) {
  std::vector<BandLevel> found;
  for (const BandLevel& each : levels) {
    const double half = few_kinds_reach(softwares, each.level) * deviation;
    found.push_back({each.level, {mean - half, mean + half}});
  }
  return found;
}

}  // namespace

std::vector<double> usual_levels() { return {0.9, 0.8, 0.5}; }

std::vector<BandLevel> symmetric_levels(double degrees, double deviation) {
  std::vector<BandLevel> levels;
  for (const double level : usual_levels()) {
    const double half = student_t_reach(degrees, level) * deviation;
    levels.push_back({level, {-half, half}});
  }
  return levels;
}

StepErrors::StepErrors(Residuals residuals)
    : residuals_(std::move(residuals)), model_(residuals_.groups, residuals_.components) {
  for (const Blind blind : {Blind::model, Blind::machine, Blind::software}) {
    folds_[blind] = folds(blind);
  }
  folds_[Blind::configuration] = configuration_folds();
}

// A group of several configurations each: what else is known stays as it is without one of them.
std::vector<StepErrors::Fold> StepErrors::configuration_folds() const {
  std::vector<Fold> found;
  for (const ResidualGroup& group : residuals_.groups) {
    if (!group.left_out) continue;
    Fold fold{model_, {}};
    const double deviation = model_.at(group.subject).deviation();
    for (const double error : *group.left_out) fold.scores.push_back(error / deviation);
    found.push_back(std::move(fold));
  }
  return found;
}

std::vector<StepErrors::Fold> StepErrors::folds(Blind blind) const {
  const auto drops = [&](const Subject& held, const Subject& other) {
    if (!same_software(held, other)) return false;
    if (blind == Blind::software) return true;
    return held.model == other.model || (blind == Blind::machine && held.machine == other.machine);
  };
  std::vector<std::pair<Subject, std::string>> done;
  std::vector<Fold> found;
  for (const ResidualGroup& first : residuals_.groups) {
    const Subject& held = first.subject;
    const std::string model = blind == Blind::model ? held.model : "";
    // There is one group for a machine at two rates of NICs that may be the same.
    const auto is_done = [&](const std::pair<Subject, std::string>& other) {
      return other.second == model && same_place(other.first, held);
    };
    if (std::any_of(done.begin(), done.end(), is_done)) continue;
    done.emplace_back(held, model);
    const std::vector<ResidualGroup> left =
        only(residuals_.groups, [&](const Subject& other) { return !drops(held, other); });
    // Held out must be no more than the question lacks: with its software left, on its machine.
    const auto known = [&](const ResidualGroup& group) {
      return blind == Blind::software ||
             (blind == Blind::machine ? same_software(held, group.subject)
                                      : same_place(held, group.subject));
    };
    if (left.empty() || std::none_of(left.begin(), left.end(), known)) continue;
    Fold fold{ErrorModel(left, residuals_.components), {}};
    for (const ResidualGroup& group : residuals_.groups) {
      const bool member =
          same_place(held, group.subject) && (model.empty() || group.subject.model == model);
      if (!member) continue;
      const Expected expected = fold.left.at(group.subject);
      for (const double value : group.log_ratios) {
        fold.scores.push_back(std::abs(value - expected.mean) / expected.deviation());
      }
    }
    found.push_back(std::move(fold));
  }
  return found;
}

Basis StepErrors::basis_of(const Subject& subject) const {
  Basis basis = Basis::nothing;
  for (const ResidualGroup& group : residuals_.groups) {
    const Subject& other = group.subject;
    if (!same_software(subject, other)) continue;
    Basis known = Basis::software;
    if (same_place(subject, other)) {
      known = subject.model == other.model ? Basis::model : Basis::machine;
    }
    basis = std::min(basis, known);
  }
  return basis;
}

// The groups nearest to a question: of its software on its machine, else of its software, else all.
std::vector<ResidualGroup> StepErrors::near(const Subject& subject, Basis basis) const {
  return only(residuals_.groups, [&](const Subject& other) {
    if (basis == Basis::nothing) return true;
    return basis == Basis::software ? same_software(subject, other) : same_place(subject, other);
  });
}

void StepErrors::describe(const Subject& subject, Band& band) const {
  const std::vector<ResidualGroup> near = this->near(subject, band.basis);
  std::set<std::string> models;
  std::set<std::pair<std::string, std::string>> machines;
  std::vector<double> all;
  band.least = near.front().least;
  band.most = near.front().most;
  for (const ResidualGroup& group : near) {
    band.rows += group.rows;
    models.insert(group.subject.model);
    machines.insert({group.subject.software, group.subject.machine});
    band.least = std::min(band.least, group.least);
    band.most = std::max(band.most, group.most);
    // The median of all rows, each group's standing for as many.
    for (int row = 0; row < group.rows; ++row) {
      const double place = (row + 0.5) / group.rows * static_cast<double>(kept_shares.size());
      all.push_back(group.log_ratios[static_cast<std::size_t>(place)]);
    }
  }
  band.models = static_cast<int>(models.size());
  band.machines = static_cast<int>(machines.size());
  band.median = moesim::median(all);
}

// What is left out for a question, the least first. Where too few groups have several
// configurations for the widest level, a known model counts as one that is not.
std::vector<StepErrors::Blind> StepErrors::blinds_for(Basis basis, double widest) const {
  if (basis == Basis::model && level_allowed(folds_.at(Blind::configuration).size(), widest)) {
    return {Blind::configuration};
  }
  std::vector<Blind> blinds = {Blind::model};
  if (basis >= Basis::software) blinds.push_back(Blind::machine);
  if (basis == Basis::nothing) blinds.push_back(Blind::software);
  return blinds;
}

// A band without a model is one of the subject only where its software ran others.
bool StepErrors::knows_other_models(const Subject& subject) const {
  return std::any_of(residuals_.groups.begin(), residuals_.groups.end(), [&](const auto& group) {
    return same_place(group.subject, subject) && group.subject.model != subject.model;
  });
}

std::vector<BandLevel> StepErrors::levels_blind_to(Blind blind, const Subject& subject,
                                                   const std::vector<double>& wanted) const {
  std::vector<HeldOut> held_out;
  for (const Fold& fold : folds_.at(blind)) {
    const Expected expected = fold.left.at(subject);
    HeldOut each{expected.mean, {}};
    for (const double score : fold.scores) each.scores.push_back(score * expected.deviation());
    held_out.push_back(std::move(each));
  }
  return levels_of(held_out, wanted);
}

double StepErrors::deviation_of(const std::vector<UnmeasuredTrait>& unmeasured) const {
  double squares = 0;
  for (const UnmeasuredTrait& each : unmeasured) squares += each.trait.share * each.trait.share;
  return residuals_.unmeasured.deviation * std::sqrt(squares);
}

void StepErrors::widen_by(const std::vector<UnmeasuredTrait>& unmeasured, Band& band) const {
  band.unmeasured = unmeasured;
  widen_by(deviation_of(unmeasured), band);
  add_hidden(band);
}

void StepErrors::add_hidden(Band& band) {
  const double gain = hidden_gain(band.unmeasured);
  for (BandLevel& each : band.levels) each.log_ratios.low -= gain;
}

void StepErrors::widen_by(double unmeasured, Band& band) const {
  add_unmeasured(band.expected.mean, unmeasured, band.levels);
}

void StepErrors::add_unmeasured(double centre, double deviation,
                                std::vector<BandLevel>& levels) const {
  if (deviation == 0) return;
  const auto known_from = static_cast<std::size_t>(residuals_.unmeasured.traits);
  for (BandLevel& each : levels) {
    const double reach = few_kinds_reach(known_from, each.level) * deviation;
    Interval& ends = each.log_ratios;
    ends = {std::min(ends.low, centre - std::hypot(centre - ends.low, reach)),
            std::max(ends.high, centre + std::hypot(ends.high - centre, reach))};
  }
}

void StepErrors::add_moves(const Subject& subject, const AssumedMoves& moves, Band& band) const {
  std::vector<AssumedMoves> known;
  for (const ResidualGroup& group : near(subject, band.basis)) {
    const bool is_other_model = band.basis == Basis::model && group.subject.model != subject.model;
    if (group.moves && !is_other_model) known.push_back(*group.moves);
  }
  if (known.empty()) return;  // the document does not say
  band.moves = beyond(moves, mean_of(known));
  const double centre = band.expected.mean;
  for (BandLevel& each : band.levels) {
    const MovedEnds ends = moved_ends(band.moves, each.level);
    Interval& logs = each.log_ratios;
    logs = {std::min(logs.low, centre - std::hypot(centre - logs.low, ends.low)),
            std::max(logs.high, centre + std::hypot(logs.high - centre, ends.high))};
  }
}

Band StepErrors::band(const Subject& subject, const std::vector<double>& wanted,
                      const std::vector<StepTrait>& traits, const AssumedMoves& moves) const {
  Band band;
  band.basis = basis_of(subject);
  band.expected = model_.at(subject);
  for (const Blind blind : blinds_for(band.basis, wanted.front())) {
    // Less is known: no level that its own groups do not allow.
    const std::vector<BandLevel> narrower =
        std::exchange(band.levels, levels_blind_to(blind, subject, wanted));
    widen(band.levels, narrower);
    band.held_out = folds_.at(blind).size();
  }
  if (band.levels.empty()) {
    throw TooFewGroups(residuals_.name + ": too few groups of measured steps for a band");
  }
  if (band.basis == Basis::model && knows_other_models(subject) &&
      narrow(band.levels, levels_blind_to(Blind::model, subject, wanted))) {
    band.held_out = folds_.at(Blind::model).size();
  }
  if (band.basis == Basis::nothing) {
    // Machines of one software say little of another software.
    widen(band.levels, of_any_software(band.expected.mean, band.expected.deviation(),
                                       residuals_.software().size(), band.levels));
  }
  describe(subject, band);
  band.unmeasured = unmeasured_traits(residuals_.measured, subject.machine, traits);
  widen_by(deviation_of(band.unmeasured), band);
  add_moves(subject, moves, band);
  add_hidden(band);
  return band;
}

Band StepErrors::ratio_band(const std::string& software, bool same_model, double distance,
                            double unmeasured) const {
  const double reach = same_model ? distance_reach(distance) : 1;
  const auto errors = [&](bool any_software) {
    std::vector<HeldOut> held_out;
    for (const RatioGroup& group : residuals_.ratios) {
      if (group.model.empty() == same_model) continue;
      if (!any_software && group.software != software) continue;
      HeldOut each{0, {group.errors.begin(), group.errors.end()}};
      for (double& score : each.scores) score *= group.by_distance ? reach : 1;
      held_out.push_back(std::move(each));
    }
    return held_out;
  };
  std::vector<HeldOut> held_out = errors(false);
  Band band;
  band.basis = Basis::software;
  // Fewer groups than 80 % asks for: those of every software.
  if (!level_allowed(held_out.size(), least_wanted)) {
    held_out = errors(true);
    band.basis = Basis::nothing;
  }
  band.held_out = held_out.size();
  band.levels = levels_of(held_out, usual_levels());
  if (band.levels.empty()) {
    throw TooFewGroups(residuals_.name +
                       ": too few pairs of measured steps for a band of their ratio");
  }
  const std::vector<std::string> known = residuals_.software();
  if (std::find(known.begin(), known.end(), software) == known.end()) {
    const double model = same_model ? 0 : residuals_.components.model;
    const double deviation = reach * std::hypot(model_.at({}).scatter, model) * std::numbers::sqrt2;
    widen(band.levels, of_any_software(0, deviation, known.size(), band.levels));
  }
  add_unmeasured(0, unmeasured, band.levels);
  return band;
}

Band StepErrors::machine_ratio_band(const std::string& software, const AssumedMoves& moves,
                                    double distance, double more) const {
  std::vector<HeldOut> held_out;
  std::vector<AssumedMoves> known_moves;
  std::vector<double> distances;
  const auto take = [&](bool any_software) {
    for (const MachinePairs& group : residuals_.machine_ratios) {
      if (!any_software && group.software != software) continue;
      held_out.push_back({0, {group.errors.begin(), group.errors.end()}});
      if (group.moves) known_moves.push_back(*group.moves);
      if (group.distance) distances.push_back(*group.distance);
    }
  };
  take(false);
  Band band;
  band.basis = Basis::software;
  if (!level_allowed(held_out.size(), least_wanted)) {
    held_out.clear();
    known_moves.clear();
    distances.clear();
    take(true);
    band.basis = Basis::nothing;
  }
  band.held_out = held_out.size();
  band.levels = levels_of(held_out, usual_levels());
  if (band.levels.empty()) {
    throw TooFewGroups(residuals_.name +
                       ": too few pairs of machines that one software was measured on for a band");
  }
  if (band.basis == Basis::nothing) {
    const Components& parts = residuals_.components;
    const double deviation = std::hypot(model_.at({}).scatter, parts.machine, parts.model);
    widen(band.levels, of_any_software(0, deviation * std::numbers::sqrt2,
                                       residuals_.software().size(), band.levels));
  }
  band.moves = beyond(moves, mean_of(known_moves));
  const double known = distances.empty() ? distance : moesim::mean(distances);
  const double reach = std::max(1.0, distance_reach(distance) / distance_reach(known));
  for (BandLevel& each : band.levels) {
    const MovedEnds ends = moved_ends(band.moves, each.level);
    const double half = std::hypot(reach * each.log_ratios.high, std::max(ends.low, ends.high),
                                   more * normal_quantile((1 + each.level) / 2));
    each.log_ratios = {-half, half};
  }
  return band;
}

}  // namespace moesim::uncertainty
