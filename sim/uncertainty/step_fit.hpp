#pragma once

#include <array>
#include <optional>
#include <vector>

#include "sim/uncertainty/step_software.hpp"

namespace moesim::uncertainty {

// A measured step, layer or exchange beside its prediction.
struct MeasuredStep {
  StepClasses predicted;
  double measured_ms = 0;
  // The row with the host's times multiplied, by 1 too; empty: the unknown host is a factor on the
  // predicted wait.
  HostCurve hosts = {};

  // As it is predicted by the host's times of these unknowns, with the host's gain.
  StepClasses at(const Unknowns& unknowns) const;
  // scaled_ms() of that.
  double scaled_ms(const Unknowns& unknowns) const;
};

// What is known of a software before its own steps are.
struct SoftwarePrior {
  Unknowns mean{};
  Unknowns deviation{};  // 0: not in question
  std::array<double, row_kind_count> scatter = {0.15, 0.10, 0.10};
  // Where all exchanges that were measured alone cross domains: what is known is the factor on
  // those across as a whole, exchange + nic, of which `deviation` of nic is, and it says nothing of
  // those inside. Else both share the factor on exchanges.
  bool crossing_apart = false;
  // Known as if from so many configurations: the scatter of published software differs by a factor
  // of two from one to the next.
  double scatter_rows = 2;
};

// Of `subject`, from published steps: the level as ErrorModel expects it. Exchanges to 25 %, host
// launches to a factor of two, 20 ms of fixed cost: assumed.
SoftwarePrior prior_of(const StepErrors& errors, const Subject& subject);

// Of rows whose priors differ, of several models say, each of equal weight: they have one software
// all the same. The mean and the variance of each unknown are those of the mixture, so that priors
// apart leave it more uncertain; scatters are root mean squares. Of equal priors it is that prior;
// the order does not matter. Precondition: at least one.
SoftwarePrior mixture_of(const std::vector<SoftwarePrior>& priors);

// The prior with the unknowns that only these rows bring into question: experts where a layer was
// measured (15 %), NICs where an exchange was (20 %, the law with machines left out: as uncertain
// as before where none went through them; where all did, exchanges across are known apart from
// those inside), and what layers and exchanges that are measured alone have of their own (15 %
// each; all assumed but the law). Their scatter, 10 %, is assumed too.
SoftwarePrior prior_with(SoftwarePrior prior, const std::vector<MeasuredStep>& rows);

struct StepFit {
  Unknowns unknowns{};
  Covariance covariance{};
  std::array<Scatter, row_kind_count> scatters{};
  // How many parameters the rows decided, of those that were free: the rest is the prior's.
  double effective = 0;
  // Other unknowns that fit nearly as well, where the rows tell the host's times and the rest badly
  // apart: of one of both the host is at its prior's mean, of the other more than 20 % away.
  std::optional<Unknowns> rival;

  const Scatter& scatter(RowKind kind) const { return scatters[static_cast<std::size_t>(kind)]; }
};

// The unknowns with which measured rows are most likely under the prior (least squares of logs, a
// penalty for leaving the prior, of the level that of a distribution with heavy tails; Gauss-Newton
// from the prior's mean and from that of the rows; where rows have curves of the host also from
// hosts that take a quarter to four times as long, as where nothing waits no slope leads on), and
// the scatter of rows of each kind around them (an inverse chi square prior). Unknowns that are not
// `free` stay at the prior's mean, with its variance; of exchanges alone the covariance holds what
// the free ones then stand in for, so that the product of all factors is as certain as the rows
// make it. The fixed cost is never below 0. Throws Error for no rows.
//
// Where rows have curves of the host and the prior knows the level at least twice as well as the
// host, the latter stays at the prior's mean if the best fit there is nearly as likely: less than
// half the ratio of both deviations times. The covariance is the mean square away from the fit over
// all hosts, by how likely each is.
StepFit fit_steps(const std::vector<MeasuredStep>& rows, const std::vector<Unknown>& free,
                  const SoftwarePrior& prior);

// What of a software this fit says; its names, models and errors are left open.
StepSoftware software_of(const StepFit& fit);

// The unknowns of layers and exchanges by themselves that the rows have: they are always free.
std::vector<Unknown> alone_in(const std::vector<MeasuredStep>& rows);

// The unknowns that the rows can carry: the level, those of alone_in(), and of the others those
// that move the rows apart by more than 1 %, the most moving first; fewer than there are rows.
std::vector<Unknown> carried_by(const std::vector<MeasuredStep>& rows, const SoftwarePrior& prior);

// log(measured / predicted) of each row, predicted by a fit without it; nothing for fewer than two
// rows. Rows are configurations: of one that is repeated the repeats would predict each other.
std::vector<double> left_out_errors(const std::vector<MeasuredStep>& rows,
                                    const std::vector<Unknown>& free, const SoftwarePrior& prior);

}  // namespace moesim::uncertainty
