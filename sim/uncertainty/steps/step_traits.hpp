#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/training/job/training_job.hpp"
#include "sim/training/step/training_step.hpp"

namespace moesim::uncertainty {

// Something that a step has and others have not, or have less of: context parallelism, a length of
// sequences.
struct StepTrait {
  std::string name;  // "context-parallel"; "dispatcher:hybridep"
  double size = 1;   // TP, tokens of a sequence; 1: it has none
  // The share of the step that those parts take whose time hangs on the trait: with what is hidden
  // of the exchanges of experts, and with the bubble of 1F1B, where the trait is a way to hide or
  // to avoid these.
  double share = 0;
  // How much less the log of the step's time would be if computing hid the exchanges that the trait
  // brings: training::hidden_gain(), of ZeRO 2 and 3.
  double hidden = 0;
};
std::vector<StepTrait> traits_of(const training::TrainingJob& job,
                                 const training::TrainingStep& step);

// The traits of a pass of one layer of the job, without share: those of which its time can tell.
std::vector<StepTrait> traits_of_layer(const training::TrainingJob& job);

// The trait of that name; null: none.
const StepTrait* trait_of(const std::vector<StepTrait>& traits, const std::string& name);

// The most of each trait among the measured steps of a machine, by name.
struct MeasuredTraits {
  std::string machine;
  std::map<std::string, double> most;

  void add(const std::vector<StepTrait>& traits);  // of one measured step more
};

// A trait of which no measured step has as much.
struct UnmeasuredTrait {
  StepTrait trait;
  double most = 0;      // that was measured; 0: none
  std::string machine;  // where it was not; "": on none
};

// How many times the most that was measured still counts as measured: what is not beside it differs
// in kind. The number of GPUs alone counts from the most on.
double reach_of(const std::string& trait);

// Those of `traits` that no step of `measured` has and that decide some of its time. A precision
// has to be measured on the machine itself where any step was.
std::vector<UnmeasuredTrait> unmeasured_traits(const std::vector<MeasuredTraits>& measured,
                                               const std::string& machine,
                                               const std::vector<StepTrait>& traits);

// StepTrait::hidden of all of them.
double hidden_gain(const std::vector<UnmeasuredTrait>& unmeasured);

// "context parallelism", "sequences of 32768 tokens (at most 8192 measured)", "products in
// fp8-block on NVIDIA H200 (on others alone)".
std::string text_of(const UnmeasuredTrait& unmeasured);
std::string texts_of(const std::vector<UnmeasuredTrait>& unmeasured, const char* between = ", ");

}  // namespace moesim::uncertainty
