#pragma once

#include <array>
#include <optional>
#include <vector>

#include "sim/base/enum_names.hpp"
#include "sim/training/step/training_step.hpp"

namespace moesim::uncertainty {

// What a measured row is.
enum class RowKind { step, layer, exchange };
inline constexpr EnumNames<RowKind, 3> row_kind_names{{
    {RowKind::step, "step", "a training step"},
    {RowKind::layer, "layer", "one pass of a layer"},
    {RowKind::exchange, "exchange", "an exchange"},
}};
constexpr std::size_t row_kind_count = row_kind_names.size();

// A predicted step, or a layer or exchange by itself, by what the unknowns of a software act on, in
// milliseconds.
struct StepClasses {
  double compute = 0;   // and bubbles, which follow it
  double exchange = 0;  // inside domains
  double host = 0;      // waiting for it
  double experts = 0;   // their FFNs
  double crossing = 0;  // exchanges through NICs
  RowKind kind = RowKind::step;
  // What the time gains for each unit of the log of the host's times, where these are the
  // software's own: its factor on the host is in them. Nothing: the factor is on the wait.
  std::optional<double> host_gain = std::nullopt;

  double total() const { return compute + exchange + host + experts + crossing; }
};

// `crossing`: which parts go through NICs, training::crossing_parts().
using CrossingParts = std::array<bool, training::part_names.size()>;
StepClasses classes_of(const training::PartTimes& parts, const CrossingParts& crossing);
// The classes of a step, with the gain of its host where the step has that.
StepClasses classes_of(const training::TrainingStep& step, const CrossingParts& crossing = {});

// The factors with which a row is priced first: two deviations of the prior, and further, either
// way.
inline constexpr std::array host_factors = {0.25, 0.5, 0.7071, 1.0, 1.4142, 2.0, 4.0};

// A row that was priced with the host's times multiplied by several factors. The wait for the host
// is what its launches take longer than the GPU works, so it is not proportional to them: it begins
// somewhere, and then grows by all of what they gain. Between the factors: cubics that are monotone
// where the prices are (Fritsch and Butland 1984); beyond them straight lines.
class HostCurve {
 public:
  // Adds the prices at a factor that the curve does not have yet.
  void add(double factor, const StepClasses& priced);
  bool empty() const { return nodes_.empty(); }
  bool has(double factor) const;
  // Precondition: not empty.
  StepClasses at(double factor) const;

 private:
  static constexpr std::size_t class_count = 5;
  using Values = std::array<double, class_count>;
  struct Node {
    double factor = 1;
    Values values{};
    Values slopes{};
  };
  void set_slopes();

  std::vector<Node> nodes_;  // by factor
  RowKind kind_ = RowKind::step;
};

}  // namespace moesim::uncertainty
