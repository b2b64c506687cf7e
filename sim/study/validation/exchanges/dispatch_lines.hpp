#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/study/validation/exchanges/dispatch_samples.hpp"
#include "sim/study/validation/exchanges/exchange_errors.hpp"
#include "sim/study/validation/tables/band_points.hpp"

namespace moesim::study {

// What the tables of dispatchers share.

using ChosenSamples = std::vector<const DispatchSample*>;
using SampleRule = std::function<bool(const DispatchSample&)>;

ChosenSamples choose(const std::vector<DispatchSample>& samples, const SampleRule& rule);

// Errors of one line of the table, and how many points the 90 % band holds.
struct DispatchLine {
  Comparison comparison;
  std::vector<BandPoint> points;

  // `group`: what was left out.
  void add(const DispatchSample& sample, const profile::Estimate& estimate,
           const std::string& group);
  void add(const DispatchLine& other);
  void add_to(Validation& validation, const std::string& subject) const;
};

// Rows for few and for many tokens, and the band over both.
struct DispatchLines {
  DispatchLine few;
  DispatchLine many;
  DispatchLine& of(const DispatchSample& sample);
  void report(const std::string& what, Validation& validation) const;
};

// As profile::dispatch_time(), with the dispatcher's usual SMs where a sample states none.
profile::Estimate predicted(const profile::Dispatcher& dispatcher, const DispatchSample& sample);

// The figures of a sample's stage, inside or across.
const profile::StageCost& cost_of(const profile::DispatchMachine& machine,
                                  const DispatchSample& sample);

// The dispatcher with other figures for a sample's machine and stage, its factor too; the range of
// NVLink's share is scaled to the figures' own.
profile::Dispatcher with_own_cost(profile::Dispatcher dispatcher, const DispatchSample& sample,
                                  profile::StageCost cost);
// The dispatcher with the document's factor for this machine.
profile::Dispatcher with_cost(const profile::Dispatcher& dispatcher, const DispatchSample& sample,
                              profile::StageCost cost);

}  // namespace moesim::study
