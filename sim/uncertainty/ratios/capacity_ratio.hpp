#pragma once

#include <string_view>
#include <vector>

#include "sim/uncertainty/bands/simulated_band.hpp"
#include "sim/uncertainty/published/step_errors.hpp"
#include "sim/uncertainty/software/step_software.hpp"

namespace moesim::uncertainty {

// Whether two training steps of one cluster may differ in an option and still be a pair that
// differs in router and capacity alone: what chooses the experts of a token, and how it is drawn.
// Not the number of them, which is another amount of work. `option`: its name without "--", of
// `train` or of `simulate`.
bool is_capacity_choice(std::string_view option);

// What the exchanges of a training step pass.
struct StepExchanges {
  // Neighbouring ranks that a group spreads over.
  int tensor = 1;
  int context = 1;
  int experts = 1;
  int gradients = 1;  // those of a pipeline stage
  int ranks_per_domain = 1;
  bool are_measured = false;  // between the domains of that very cluster
};

// Which parts of a step go through NICs: those of a group that no domain holds.
CrossingParts crossing_of(const StepExchanges& exchanges);

// The shares of a step, whose part_times() are `parts`: each class of work, and the host's time,
// which is of none. They sum to 1.
struct ClassShares {
  WorkShares work{};
  double host = 0;
};
ClassShares class_shares(const std::vector<double>& parts, const StepExchanges& exchanges);

// The levels, as of usual_levels(), of log(measured / predicted ratio) of two training steps that
// differ in router and capacity alone, with blocks padded to it. `one`, `other`: part_times().
// `scatter`: that of one such configuration, a standard deviation of logs. What counts is that of
// ratio_band() of simulated steps: the difference of the shares of each class of work, the noise of
// two runs, two configurations' scatter. There replicas draw the errors of curves; here each part
// whose sizes follow the capacity has that of a curve at one size. The host's time has an error of
// its own.
std::vector<BandLevel> capacity_ratio_levels(const std::vector<double>& one,
                                             const std::vector<double>& other, double scatter,
                                             const StepExchanges& exchanges);

}  // namespace moesim::uncertainty
