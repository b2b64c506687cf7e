#pragma once

#include <array>
#include <cstddef>

#include "sim/base/enum_names.hpp"
#include "sim/uncertainty/steps/step_classes.hpp"

namespace moesim::uncertainty {

// What is fitted of a software to measured steps, layers and exchanges. All are logs of factors but
// the fixed cost, which is in milliseconds. A layer or an exchange that is measured alone differs
// from the same one inside a step: it is warm, and no rank waits for another.
enum class Unknown {
  level,
  exchange,
  host,
  fixed_ms,
  experts,
  nic,
  layer_alone,
  exchange_alone,
};
inline constexpr EnumNames<Unknown, 8> unknown_names{{
    {Unknown::level, "level", "factor on all of the step"},
    {Unknown::exchange, "exchange", "factor on exchanges, beyond that"},
    {Unknown::host, "host", "factor on the host's times, launches and reads"},
    {Unknown::fixed_ms, "fixed-ms", "milliseconds added to each step"},
    {Unknown::experts, "experts", "factor on the FFNs of experts, beyond the level"},
    {Unknown::nic, "nic", "factor on exchanges through NICs, beyond that on exchanges"},
    {Unknown::layer_alone, "layer-alone", "factor on a layer that is measured by itself"},
    {Unknown::exchange_alone, "exchange-alone", "factor on an exchange that is measured by itself"},
}};
constexpr std::size_t unknown_count = unknown_names.size();
constexpr std::size_t at(Unknown unknown) { return static_cast<std::size_t>(unknown); }
using Unknowns = std::array<double, unknown_count>;
using Covariance = std::array<Unknowns, unknown_count>;

// Factors on what a step consists of, and on all of it.
struct StepFactors {
  // `prices_host`: the times have the host's factor already.
  StepFactors(const Unknowns& unknowns, bool prices_host);
  double level, experts, exchange, crossing, host;

  double inside(const StepClasses& classes) const;  // what the level acts on
};

// The time with these unknowns, and the derivatives of its log.
//   step: level (compute + experts' experts + exchange (inside + nic across) + host' host) + fixed
//   layer, exchange: the same without the fixed cost, times the factor of one that is alone
// Classes with a host_gain have the factor on the host in them: host' is 1.
double inside_ms(const StepClasses& classes, const Unknowns& unknowns);  // what the level acts on
double scaled_ms(const StepClasses& classes, const Unknowns& unknowns);
Unknowns log_slopes(const StepClasses& classes, const Unknowns& unknowns);
// The variance of a sum of unknowns with these weights.
double variance_along(const Unknowns& weights, const Covariance& covariance);

}  // namespace moesim::uncertainty
