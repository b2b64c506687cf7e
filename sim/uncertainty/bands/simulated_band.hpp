#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "sim/base/enum_names.hpp"
#include "sim/uncertainty/bands/terms.hpp"
#include "sim/uncertainty/published/error_model.hpp"

namespace moesim::uncertainty {

// Work of a step whose prediction shares an error: on another specimen of the machine, or with
// another version of its libraries, all of it is off alike.
enum class WorkClass { products, memory, inside, across };
inline constexpr EnumNames<WorkClass, 4> work_class_names{{
    {WorkClass::products, "products", "matrix products and attention"},
    {WorkClass::memory, "memory", "kernels that are limited by memory, gates, launches"},
    {WorkClass::inside, "inside", "exchanges inside a domain"},
    {WorkClass::across, "across", "exchanges through NICs"},
}};
constexpr std::size_t work_class_count = work_class_names.size();
using WorkShares = std::array<double, work_class_count>;  // of a step's critical path

// One simulated replica: its step and what the critical path of that very replica consists of.
struct StepDraw {
  double step_ms = 0;
  WorkShares shares{};
};

// The same draws with the errors of curves averaged over instead of drawn, as far as the
// distribution of steps can be told from few of them: weighed_draws(). Empty: not known.
struct AveragedDraws {
  std::vector<double> mean_ms;   // [draw] of its step over the errors of curves
  std::vector<double> variance;  // [draw] of the log of its step, by these errors
  // A figure that steps follow (routing::popular_loads), and equally likely values of the same
  // routing; may be empty.
  std::vector<double> loads;
  std::vector<double> all_loads;
};

// What is known of the software and the machine that a step is predicted for.
struct SoftwareError {
  double mean = 0;       // expected log(measured / simulated)
  double deviation = 0;  // of it: latent and scatter of ErrorModel
  double factor = 1;     // on the deviation: Student's t over the normal quantile, few kinds
  double scatter = 0;    // of one configuration around others of its software, machine and model
  double capacity_scatter = 0;  // around others that differ in router and capacity alone, padded
  bool has_measured_exchanges = false;  // between the domains of the cluster in question
  // The shares of the steps that it was fitted to: a class's error is in `mean` as far as they have
  // it, and counts for the difference of shares. Zeros: fitted to none.
  WorkShares fitted_shares{};
  // For the ratio of two steps on two machines or clusters.
  bool is_any = false;      // no multipliers: whichever program the user runs, the same on both
  double of_machine = 0;    // of `deviation`, what each machine has of its own
  double of_exchanges = 0;  // of `deviation`, by exchanges on a cluster that was not fitted to
  std::string name;         // the term
  std::string remedy;
};

// Where the measured time of a simulated step lies.
struct SimulatedBand {
  double p05_ms = 0;
  double p50_ms = 0;
  double p95_ms = 0;
  // The ends without what all steps of one software on one machine share: for comparing steps. It
  // has the simulated step inside.
  double same_p05_ms = 0;
  double same_p95_ms = 0;
  std::vector<Term> terms;  // the largest first
};

// log(measured) = log(step of a draw) + software and machine + sum over classes (share x systematic
// error) + noise of the run. A class's error is one for all layers, ranks and steps; what differs
// from shape to shape is in the draws. Each term is normal, so the answer is a mixture of as many
// log-normal distributions as there are draws, of equal weight; its quantiles are exact. With few
// draws the errors of curves that they cannot show are a term of its own. Where averaged draws are
// given the mixture is that of weighed_draws(). Standard deviations, of logs: see
// systematic_error(). `draws` must not be empty, steps positive.
SimulatedBand simulated_band(const std::vector<StepDraw>& draws, const SoftwareError& software,
                             const AveragedDraws& averaged = {});

// Where computing may hide more than is simulated of what ZeRO 2 and 3 exchange in every
// micro-step, so that the log of the step would be less by `gain`: moves the lower ends by all of
// it, as those of StepErrors::band(), and names it among the terms. Both ends of the gain are
// possible, so it does not add in squares; the median stays. Nothing for a gain of 0. `zero`: the
// stage.
void widen_by_hidden(double gain, int zero, SimulatedBand& band);

// The errors of a class, and the noise of one run, as deviations of logs: products 0.05, memory
// 0.10, exchanges inside 0.055, across 0.20 or, where the cluster has measurements of its own
// between domains, 0.055. The sources stand in README.md.
double systematic_error(WorkClass work, bool has_measured_exchanges);
inline constexpr double run_noise = 0.02;

// One shape of a curve, as if all of a step were of one: the medians of held-out errors of the
// curves are 2 to 5 % (profiles/ACCURACY.md), 3.4 % of a normal distribution of this deviation.
inline constexpr double curve_error = 0.05;

// The share of a standard normal variance that `draws` strata of equal weight do not show.
double unseen_variance(std::size_t draws);

// The second of two steps where it runs on another machine than the first. Errors of the classes
// that are `apart` are of each machine by itself, so they do not cancel.
struct OtherMachine {
  std::array<bool, work_class_count> apart{};
  bool has_measured_exchanges = false;
  WorkShares fitted_shares{};  // as SoftwareError has them
};

// The log of the ratio of two steps of one software on one machine, whose errors cancel: first over
// second, replica by replica where there are as many of both, with the difference of the shares of
// each class (of classes that are apart in `other` the shares of both), the noise of two runs, and
// `scatter` of two configurations. If the ratio follows the load of either it counts at all loads
// (values_at_loads). p05 <= p50 <= p95.
struct RatioBand {
  double p05 = 0;
  double p50 = 0;
  double p95 = 0;
};
RatioBand ratio_band(const std::vector<StepDraw>& first, const std::vector<StepDraw>& second,
                     const SoftwareError& software, const AveragedDraws& of_first = {},
                     const AveragedDraws& of_second = {}, const OtherMachine& other = {});

}  // namespace moesim::uncertainty
