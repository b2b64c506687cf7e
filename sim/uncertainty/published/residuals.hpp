#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sim/base/formats/document.hpp"
#include "sim/uncertainty/published/built_options.hpp"
#include "sim/uncertainty/steps/assumed_moves.hpp"
#include "sim/uncertainty/steps/step_traits.hpp"

namespace moesim::uncertainty {

// What a step is a step of, as far as its error depends on it.
struct Subject {
  std::string software;  // "megatron-bridge"; "": not known
  std::string machine;   // of the profile's device: "NVIDIA GB300"
  // "deepseek-v3": Model::name, wherever its document lies. A changed copy that keeps the name
  // counts as that model.
  std::string model;
  bool low_precision = false;  // products in FP8 or narrower
  // The rate of the NICs per GPU, as the cluster of the prediction has them. Of measured steps also
  // where these use none: they are steps of a machine with such NICs, and no others. 0: not told,
  // or of a step that is asked about, none is used.
  double nic_gbit_per_s = 0;

  bool operator==(const Subject&) const = default;
};

// A machine is a kind of GPU with the NICs that it has: whether both could be the same. The time of
// a step hangs on its NICs, which may be had with one GPU at rates a factor of two apart.
bool nics_alike(const Subject& one, const Subject& other);
bool same_machine(const Subject& one, const Subject& other);  // of any software

// One measured step beside its prediction.
struct Observation {
  Subject subject;
  std::string configuration;  // equal for the same configuration in another release
  // Equal for steps that differ in router and capacity alone, with blocks padded to the capacity,
  // so that what they take does not depend on a routing that nobody recorded; "": for no other.
  std::string layout;
  double log_ratio = 0;         // log(measured / predicted)
  std::vector<double> parts{};  // of the predicted step, part_times(); empty: not told
  std::vector<StepTrait> traits{};
  std::optional<AssumedMoves> moves{};
  std::string release{};  // of the software, as its source names it; "": not told
  BuiltOptions build{};   // empty: not told
};

bool same_software(const Observation& one, const Observation& other);

// The shares of the observations of a group whose log ratios a document keeps.
inline constexpr std::array<double, 5> kept_shares = {0.1, 0.3, 0.5, 0.7, 0.9};
using Quantiles = std::array<double, kept_shares.size()>;
Quantiles quantiles_of(const std::vector<double>& values);

// Whether these are a pair of MachinePairs.
bool is_machine_pair(const Observation& one, const Observation& other);

// The observations of one subject.
struct ResidualGroup {
  Subject subject;
  int rows = 0;
  int configurations = 0;  // different ones
  double least = 0;
  double most = 0;
  Quantiles log_ratios{};
  // The quantiles of |log ratio - median of the group's other configurations|; where there are at
  // least two.
  std::optional<Quantiles> left_out;
  std::optional<AssumedMoves> moves;  // the mean of its rows; nothing: not told
  std::set<BuiltOptions> builds;      // different ones of its rows; empty: not told

  double median() const { return log_ratios[kept_shares.size() / 2]; }
  // The standard deviation of a normal distribution with these quantiles, from the outermost two.
  double spread() const;
};

// How far the predicted ratio of two steps was off that were measured with the same software, in
// any releases, on the same machine.
struct RatioGroup {
  std::string software;
  std::string machine;
  std::string model;         // of both; "": of two models
  bool of_capacity = false;  // pairs that differ in router and capacity alone, both padded
  // Each error is divided by distance_reach() of its pair.
  bool by_distance = false;
  int pairs = 0;
  Quantiles errors{};  // of |log(measured ratio / predicted ratio)|
};

// How far the predicted ratio of two steps of one model was off that were measured with one release
// of a software on two machines, with products in the same precision or both in a lower one. Their
// layouts are those that each machine was measured with.
struct MachinePairs {
  std::string software;
  std::string machine;  // of Subject, with that of `other` in the order of the alphabet
  std::string other;
  std::string model;
  int pairs = 0;
  Quantiles errors{};                 // of |log(measured ratio / predicted ratio)|
  std::optional<AssumedMoves> moves;  // the mean of moves_between() them; nothing: not told
  std::optional<double> distance;     // the mean of their share_distance(); nothing: not told
};

// How much of the error belongs to what, as standard deviations of logs: fitted, see ErrorModel.
struct Components {
  double all = 0;        // of every prediction alike
  double software = 0;   // of one software on every machine
  double machine = 0;    // of one machine in one software
  double precision = 0;  // of bf16, of lower precision
  double model = 0;      // of one model on one machine
};

// How far the time of parts is off that hang on a trait with which no step was measured: by traits
// that were left out (unmeasured_law.hpp).
struct UnmeasuredLaw {
  double deviation = 0;  // of the log of the time of the parts
  int traits = 0;        // that were left out; 0: not known
};

// Errors of predicted training steps, by group: a document of profiles/residuals.
struct Residuals {
  std::string name;
  std::string source;
  std::string regenerate;  // the command that wrote it
  Components components;
  std::vector<ResidualGroup> groups;
  std::vector<RatioGroup> ratios;
  std::vector<MachinePairs> machine_ratios;  // none: no release ran on two machines
  std::vector<MeasuredTraits> measured;      // by machine; empty: not told
  UnmeasuredLaw unmeasured;

  // A shipped name or a file. Throws UsageError as find_document() and Document do.
  static Residuals load(const std::string& name_or_path);
  std::string text() const;  // of the document, JSON
  std::vector<std::string> software() const;
};

// The software of steps that a profile with multipliers of a software predicts: fitted to them, it
// is no software that nothing was fitted to.
std::string profile_software(const std::string& profile);
bool is_profile(const std::string& software);

// Groups in the order of software, machine, model and precision; components and the law of what was
// not measured are left at 0.
Residuals summarised(const std::vector<Observation>& observations);

}  // namespace moesim::uncertainty
