#pragma once

#include <array>
#include <optional>
#include <vector>

#include "sim/uncertainty/software/software_prior.hpp"

namespace moesim::uncertainty {

struct StepFit {
  Unknowns unknowns{};
  Covariance covariance{};
  std::array<Scatter, row_kind_count> scatters{};
  // How many parameters the rows decided, of those that were free: the rest is the prior's.
  double effective = 0;
  // Other unknowns that fit nearly as well, where the rows tell the host's times and the rest badly
  // apart: of one of both the host is at its prior's mean, of the other more than 20 % away.
  std::optional<Unknowns> rival;
  // The same of exchanges and the level, of which one is at its prior's mean; nothing where the
  // host has a rival.
  std::optional<Unknowns> exchange_rival;

  const Scatter& scatter(RowKind kind) const { return scatters[static_cast<std::size_t>(kind)]; }
};

// The unknowns with which measured rows are most likely under the prior (least squares of logs, a
// penalty for leaving the prior, of the level that of a distribution with heavy tails; Gauss-Newton
// from several starts: penalised_fit.hpp), and the scatter of rows of each kind around the fit
// whose level may be anything (an inverse chi square prior; its degrees of freedom are those that
// the unknowns leave of prior and rows). Unknowns that are not `free` stay at the prior's mean,
// with its variance; of exchanges alone the covariance holds what the free ones then stand in for,
// so that the product of all factors is as certain as the rows make it. The fixed cost is never
// below 0. Throws Error for no rows.
//
// One step or layer alone sets the level, whatever the prior says of it: the covariance is the mean
// square away from there of what the prior makes of the row.
//
// Where rows have curves of the host and the prior knows the level at least twice as well as the
// host, the latter stays at the prior's mean if the best fit there is nearly as likely: less than
// half the ratio of both deviations times. The covariance is the mean square away from the fit over
// all hosts, by how likely each is.
StepFit fit_steps(const std::vector<MeasuredRow>& rows, const std::vector<Unknown>& free,
                  const SoftwarePrior& prior);

// What of a software this fit says; its names, models and errors are left open.
StepSoftware software_of(const StepFit& fit);

// The unknowns of layers and exchanges by themselves that the rows have: they are always free.
std::vector<Unknown> alone_in(const std::vector<MeasuredRow>& rows);

// The unknowns to fit to the rows: the level, those of alone_in(), and of the others those that
// move the rows apart by more than 1 %, the most moving first. All have priors, so there may be
// more of them than rows.
std::vector<Unknown> carried_by(const std::vector<MeasuredRow>& rows, const SoftwarePrior& prior);

// log(measured / predicted) of each row, predicted by a fit without it; nothing for fewer than two
// rows. Rows are configurations: of one that is repeated the repeats would predict each other.
std::vector<double> left_out_errors(const std::vector<MeasuredRow>& rows,
                                    const std::vector<Unknown>& free, const SoftwarePrior& prior);

}  // namespace moesim::uncertainty
