#include "sim/study/validation/exchanges/dispatch_lines.hpp"

#include <cmath>
#include <cstddef>

namespace moesim::study {

using profile::Dispatcher;
using profile::DispatcherStage;
using profile::DispatchMachine;
using profile::Estimate;
using profile::StageCost;

namespace {

constexpr double many_tokens = 512;

}  // namespace

ChosenSamples choose(const std::vector<DispatchSample>& samples, const SampleRule& rule) {
  ChosenSamples chosen;
  for (const DispatchSample& sample : samples) {
    if (rule(sample)) chosen.push_back(&sample);
  }
  return chosen;
}

void DispatchLine::add(const DispatchSample& sample, const Estimate& estimate,
                       const std::string& group) {
  comparison.law.add(sample.time_us, estimate.time_us, sample.where);
  points.push_back({group,
                    std::log(sample.time_us / estimate.time_us),
                    {std::log(estimate.time_us_p05 / estimate.time_us),
                     std::log(estimate.time_us_p95 / estimate.time_us)}});
}

void DispatchLine::add(const DispatchLine& other) {
  comparison.add(other.comparison);
  points.insert(points.end(), other.points.begin(), other.points.end());
}

void DispatchLine::add_to(Validation& validation, const std::string& subject) const {
  if (points.empty()) return;
  ValidationRow row = report_row(comparison, subject);
  row.note += "; " + coverage_text(points);
  validation.rows.push_back(row);
}

DispatchLine& DispatchLines::of(const DispatchSample& sample) {
  return sample.load.tokens < many_tokens ? few : many;
}

void DispatchLines::report(const std::string& what, Validation& validation) const {
  many.add_to(validation, what + ", from 512 tokens");
  few.add_to(validation, what + ", below 512 tokens");
  DispatchLine all = many;
  all.add(few);
  report_bands("exchanges", what, all.points, true, validation);
}

Estimate predicted(const Dispatcher& dispatcher, const DispatchSample& sample) {
  return profile::dispatch_time(
      dispatcher, {sample.device, sample.stage, sample.group, sample.load, sample.row_bytes,
                   sample.rates, sample.sms > 0 ? sample.sms : dispatcher.usual_sms});
}

const StageCost& cost_of(const DispatchMachine& machine, const DispatchSample& sample) {
  const auto stage = static_cast<std::size_t>(sample.stage);
  return sample.group.crosses() ? *machine.across[stage] : machine.inside[stage];
}

Dispatcher with_own_cost(Dispatcher dispatcher, const DispatchSample& sample, StageCost cost) {
  DispatchMachine machine = dispatcher.on(sample.device);
  const StageCost& known = cost_of(machine, sample);
  const double scale = cost.link_efficiency.value / known.link_efficiency.value;
  cost.link_efficiency.low = scale * known.link_efficiency.low;
  cost.link_efficiency.high = scale * known.link_efficiency.high;
  const auto stage = static_cast<std::size_t>(sample.stage);
  if (sample.group.crosses()) {
    machine.across[stage] = cost;
  } else {
    machine.inside[stage] = cost;
  }
  dispatcher.machines.insert(dispatcher.machines.begin(), machine);
  return dispatcher;
}

Dispatcher with_cost(const Dispatcher& dispatcher, const DispatchSample& sample, StageCost cost) {
  cost.factor = cost_of(dispatcher.on(sample.device), sample).factor;
  return with_own_cost(dispatcher, sample, cost);
}

}  // namespace moesim::study
