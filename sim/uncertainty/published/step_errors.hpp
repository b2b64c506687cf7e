#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "sim/base/enum_names.hpp"
#include "sim/uncertainty/published/error_model.hpp"
#include "sim/uncertainty/statistics/conformal.hpp"

namespace moesim::uncertainty {

// What of a subject was measured, the most first. Own steps are those of moesim calibrate.
enum class Basis { own, own_models, model, machine, software, nothing };
inline constexpr EnumNames<Basis, 6> basis_names{{
    {Basis::own, "own", "steps of one's own, of this model"},
    {Basis::own_models, "own-models", "steps of one's own, of other models"},
    {Basis::model, "model", "steps of this model with this software on this machine"},
    {Basis::machine, "machine", "steps of other models with this software on this machine"},
    {Basis::software, "software", "steps with this software on other machines"},
    {Basis::nothing, "nothing", "steps with other software"},
}};

struct BandLevel {
  double level = 0;
  Interval log_ratios;  // of measured over predicted
};

// Measured over predicted, of steps that were not measured.
struct Band {
  Basis basis = Basis::nothing;
  Expected expected;
  std::size_t held_out = 0;                 // groups that its width was calibrated with
  std::vector<BandLevel> levels;            // the widest first, each within the one before it
  std::vector<UnmeasuredTrait> unmeasured;  // that make it wider
  AssumedMoves moves;  // beyond those of the steps it is made from, which make it wider, too
  // The measured steps nearest to the question: of its software on its machine, else of its
  // software, else all. Log ratios.
  int rows = 0;
  int models = 0;
  int machines = 0;
  double median = 0;
  double least = 0;
  double most = 0;

  const BandLevel& widest() const { return levels.front(); }
};

// The levels that are printed: 90, 80 and 50 %.
std::vector<double> usual_levels();
// The band at the usual levels, around no error: Student's t with `degrees` of freedom.
std::vector<BandLevel> symmetric_levels(double degrees, double deviation);

// The bands of predicted steps, from what is known of others. Their width is calibrated by leaving
// out groups (jackknife_plus) in the way in which the question lies outside of what was measured:
//
//   the model is known, too                 a configuration
//   the software on the machine is known    a model, on all machines of the software
//   the software is known                   a machine of the software, and the models it ran
//   nothing is known                        a software on every machine
//
// Scores are in units of the deviation that ErrorModel expects, so that a question about which less
// is known gets a wider band; the band of a question is never narrower than that of one that knows
// more. Configurations aside, whose groups are others: of a known model both bands hold, that of a
// configuration and, where the software ran other models on the machine, that of a model left out,
// and the narrower one is taken. Where the software is not known, neither than ErrorModel's, as
// Student's t with as many degrees of freedom as kinds of software were measured: their machines
// are not as many independent groups.
//
// A step with traits that no measured one has (unmeasured_traits()) gets a wider band: each end
// lies farther from what is expected by Student's t times the deviation that UnmeasuredLaw gives to
// the time of the traits' parts, added in squares. Where such a trait brings exchanges that
// computing may hide (hidden_gain()) the lower ends are those of the step with them hidden: its
// time times the same factors.
//
// The errors of measured steps hold what is assumed of the host and of exchanges through NICs, as
// far as those steps hang on it: the mean of the groups that are nearest to the question. What a
// step's AssumedMoves are beyond that moves each end farther out, added in squares.
class StepErrors {
 public:
  explicit StepErrors(Residuals residuals);

  const Residuals& residuals() const { return residuals_; }
  // The band at those levels of `wanted`, the widest first, that the groups allow. Throws Error
  // where they allow none. `traits` and `moves`: of the step; no moves where its host and the rates
  // between its nodes were measured.
  Band band(const Subject& subject, const std::vector<double>& wanted = usual_levels(),
            const std::vector<StepTrait>& traits = {}, const AssumedMoves& moves = {}) const;
  // The band, wider by traits that none of the steps has which it is based on.
  void widen_by(const std::vector<UnmeasuredTrait>& unmeasured, Band& band) const;
  // The same of a band whose expected.mean lies between its ends, by deviation_of() the traits.
  void widen_by(double unmeasured, Band& band) const;
  // The deviation of the log of a step's time by its unmeasured traits.
  double deviation_of(const std::vector<UnmeasuredTrait>& unmeasured) const;
  // The band of the ratio of two steps predicted for one machine and one software, which cancel:
  // the error of measured over predicted ratio, around 0. `software` may be "". For a software that
  // was never measured it is not narrower than two configurations' scatter as Student's t allows.
  // For two steps of one model it follows their step_distance(); for two models `distance` has no
  // meaning. `unmeasured`: deviation_of() the traits that one of the steps has and the other has
  // not.
  Band ratio_band(const std::string& software, bool same_model, double distance,
                  double unmeasured = 0) const;
  // The band of the ratio of two steps of one model that one software, of one release, runs on two
  // machines: of log(measured / predicted ratio), around 0. `software` may be "": whichever it is.
  // Its level and what it does not do as predicted are in both. The width is that of jackknife_plus
  // over MachinePairs, a group for each pair of machines and model. A software that was not
  // measured on two machines has those of all, and is not narrower than
  //
  //   t x sqrt(2) x sqrt(scatter^2 + machine^2 + model^2)
  //
  // with the terms of ErrorModel that each machine has of its own, and Student's t with as many
  // degrees as kinds of software were measured. `moves`: moves_between() the two; beyond those of
  // the pairs they move either end farther out, as in band(). `distance`: share_distance() of the
  // two; where it is more than the mean of the pairs, their errors count as many times as much as
  // distance_reach() grows. `more`: a deviation of the log of the
  // ratio that pairs do not have, such as by what one of the steps has alone (deviation_of()), or
  // by two precisions. Throws TooFewGroups where there are too few pairs.
  Band machine_ratio_band(const std::string& software, const AssumedMoves& moves, double distance,
                          double more = 0) const;

 private:
  enum class Blind { configuration, model, machine, software };
  // A held-out group: what is left, and how far the group's quantiles were off, in deviations.
  struct Fold {
    ErrorModel left;
    std::vector<double> scores;
  };
  std::vector<Fold> folds(Blind blind) const;
  std::vector<Fold> configuration_folds() const;
  std::vector<BandLevel> levels_blind_to(Blind blind, const Subject& subject,
                                         const std::vector<double>& wanted) const;
  std::vector<Blind> blinds_for(Basis basis, double widest) const;
  bool knows_other_models(const Subject& subject) const;
  Basis basis_of(const Subject& subject) const;
  std::vector<ResidualGroup> near(const Subject& subject, Basis basis) const;
  void describe(const Subject& subject, Band& band) const;
  void add_moves(const Subject& subject, const AssumedMoves& moves, Band& band) const;
  static void add_hidden(Band& band);
  void add_unmeasured(double centre, double deviation, std::vector<BandLevel>& levels) const;

  Residuals residuals_;
  ErrorModel model_;
  std::map<Blind, std::vector<Fold>> folds_;
};

}  // namespace moesim::uncertainty
