#pragma once

#include <array>
#include <vector>

#include "sim/uncertainty/software/step_software.hpp"

namespace moesim::uncertainty {

// A measured step, layer or exchange beside its prediction.
struct MeasuredRow {
  StepClasses predicted;
  double measured_ms = 0;
  // The row with the host's times multiplied, by 1 too; empty: the unknown host is a factor on the
  // predicted wait.
  HostCurve hosts = {};

  // The row as it is predicted by the host's times of these unknowns, with the host's gain.
  StepClasses at(const Unknowns& unknowns) const;
  // scaled_ms() of that.
  double scaled_ms(const Unknowns& unknowns) const;
};

// What is known of a software before its own steps are.
struct SoftwarePrior {
  Unknowns mean{};
  Unknowns deviation{};  // 0: not in question
  std::array<double, row_kind_count> scatter = {0.15, 0.10, 0.10};
  // Where all exchanges that were measured alone cross domains, and none of the steps and layers
  // has exchanges that do: what is known is the factor on
  // those across as a whole, exchange + nic, of which `deviation` of nic is, and it says nothing of
  // those inside. Else both share the factor on exchanges.
  bool crossing_apart = false;
  // Known as if from so many configurations: the scatter of published software differs by a factor
  // of two from one to the next.
  double scatter_rows = 2;
};

// The prior of `subject`, from published steps: the level as ErrorModel expects it. Exchanges are
// known to 25 %, host launches to a factor of two, a fixed cost to 20 ms: assumed.
SoftwarePrior prior_of(const StepErrors& errors, const Subject& subject);

// The prior of rows whose priors differ, such as those of several models, each of equal weight:
// they have one software all the same. The mean and the variance of each unknown are those of the
// mixture, so that priors apart leave it more uncertain; scatters are root mean squares. The
// mixture of equal priors is that prior; the order does not matter. Precondition: at least one.
SoftwarePrior mixture_of(const std::vector<SoftwarePrior>& priors);

// The prior with the unknowns that only these rows bring into question: experts where a layer was
// measured (15 %), NICs where an exchange was (20 %, the law with machines left out: as uncertain
// as before where none went through them; where all did and no step does, exchanges across are
// known apart from those inside), and what layers and exchanges that are measured alone have of
// their own (15 % each; all assumed but the law). Their scatter, 10 %, is assumed too.
SoftwarePrior prior_with(SoftwarePrior prior, const std::vector<MeasuredRow>& rows);

// Slopes by the prior's own variables: where it knows exchanges across apart, theirs is exchange +
// nic in the place of nic.
Unknowns by_variables(Unknowns slopes, const SoftwarePrior& prior);

// Whether all rows are exchanges by themselves.
bool exchanges_alone(const std::vector<MeasuredRow>& rows);

}  // namespace moesim::uncertainty
