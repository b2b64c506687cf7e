#include "sim/study/validation/exchanges/validate_far_dispatches.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <map>
#include <set>

#include "sim/study/validation/exchanges/dispatch_lines.hpp"
#include "sim/study/validation/exchanges/dispatcher_fit.hpp"

namespace moesim::study {
namespace {

using profile::Dispatcher;
using profile::DispatcherStage;
using profile::DispatchMachine;

constexpr double level = 0.9;
constexpr double most_growth = 4;
constexpr std::size_t fewest = 20;  // rows that figures are fitted to
constexpr DispatcherStage both[] = {DispatcherStage::dispatch, DispatcherStage::combine};

BandPoint widened(BandPoint point, double half_width) {
  point.band.low = -std::hypot(point.band.low, half_width);
  point.band.high = std::hypot(point.band.high, half_width);
  return point;
}

// What is left out: a column of the tables.
struct Axis {
  const char* name;
  std::size_t fewest_kept;  // different values that figures are fitted to
  double (*value)(const DispatchSample& sample);
  double growth;  // as shipped
};

// Kind of GPU, inside or across, and stage.
struct Kind {
  std::string name;
  ChosenSamples samples;
};

std::vector<Kind> kinds_of(const Dispatcher& dispatcher,
                           const std::vector<DispatchSample>& samples) {
  std::vector<Kind> kinds;
  for (const DispatchMachine& machine : dispatcher.machines) {
    for (const bool crosses : {false, true}) {
      for (const DispatcherStage stage : both) {
        const ChosenSamples chosen = choose(samples, [&](const DispatchSample& sample) {
          return sample.stage == stage && sample.group.crosses() == crosses &&
                 &dispatcher.on(sample.device) == &machine;
        });
        if (chosen.empty()) continue;
        kinds.push_back({fmt::format("{} {}, {}", machine.gpus.front(), name_of(stage),
                                     crosses ? "across" : "inside"),
                         chosen});
      }
    }
  }
  return kinds;
}

// All numbers of SMs count as measured: their growth is what is asked.
Dispatcher with_any_sms(Dispatcher dispatcher) {
  for (profile::MeasuredDispatches& measured : dispatcher.measured) measured.sms.clear();
  return dispatcher;
}

// Values beyond those up to, or from, each of the values on.
std::vector<FarCase> cases_of(const Dispatcher& dispatcher, const Kind& kind, const Axis& axis) {
  std::set<double> values;
  for (const DispatchSample* sample : kind.samples) values.insert(axis.value(*sample));
  const DispatchSample& first = *kind.samples.front();
  const double nic = first.group.crosses() ? dispatcher.nic[0]->efficiency.value : 1;
  std::vector<FarCase> cases;
  const auto predict_beyond = [&](double edge, const std::function<bool(double)>& is_kept) {
    const auto kept_values = std::count_if(values.begin(), values.end(), is_kept);
    if (static_cast<std::size_t>(kept_values) < axis.fewest_kept) return;
    ChosenSamples kept;
    std::map<double, ChosenSamples> beyond;
    for (const DispatchSample* sample : kind.samples) {
      const double value = axis.value(*sample);
      (is_kept(value) ? kept : beyond[value]).push_back(sample);
    }
    if (kept.size() < fewest || beyond.empty()) return;
    const profile::StageCost like = cost_of(dispatcher.on(first.device), first);
    const Dispatcher fitted = with_cost(dispatcher, first, fit_stage(like, kept, nic, false));
    for (const auto& [value, held] : beyond) {
      DispatchLine line;
      for (const DispatchSample* sample : held) {
        line.add(*sample, predicted(fitted, *sample), kind.name);
      }
      cases.push_back({std::abs(std::log2(value / edge)), line.points});
    }
  };
  for (const double edge : values) {
    predict_beyond(edge, [&](double value) { return value <= edge; });
    predict_beyond(edge, [&](double value) { return value >= edge; });
  }
  return cases;
}

double share_inside(const std::vector<FarCase>& cases, double growth) {
  double sum = 0;
  for (const FarCase& each : cases) {
    const double half_width = growth * std::sqrt(each.octaves);
    const auto inside =
        std::count_if(each.points.begin(), each.points.end(), [&](const BandPoint& point) {
          return widened(point, half_width).band.contains(point.error);
        });
    sum += static_cast<double>(inside) / static_cast<double>(each.points.size());
  }
  return sum / static_cast<double>(cases.size());
}

void leave_out(const Dispatcher& dispatcher, const std::vector<Kind>& kinds, const Axis& axis,
               Validation& validation) {
  std::map<std::string, std::vector<FarCase>> by_kind;
  std::vector<FarCase> all;
  for (const Kind& kind : kinds) {
    const std::vector<FarCase> cases = cases_of(dispatcher, kind, axis);
    if (cases.empty()) continue;
    by_kind[kind.name] = cases;
    all.insert(all.end(), cases.begin(), cases.end());
  }
  if (by_kind.size() < 2) return;
  std::vector<BandPoint> points;
  for (const auto& [name, cases] : by_kind) {
    std::vector<FarCase> others;
    for (const auto& [other, theirs] : by_kind) {
      if (other != name) others.insert(others.end(), theirs.begin(), theirs.end());
    }
    const double growth = error_growth(others);
    for (const FarCase& each : cases) {
      for (const BandPoint& point : each.points) {
        points.push_back(widened(point, growth * std::sqrt(each.octaves)));
      }
    }
  }
  const std::string what = fmt::format("DeepEP normal, {} beyond those of the figures", axis.name);
  report_bands("exchanges", what, points, true, validation);
  validation.verdicts.push_back(
      {"exchanges",
       fmt::format("{}: errors grow by {:.2f} for each root of a factor of two, {:.2f} as shipped; "
                   "without it {:.0f} % inside",
                   what, error_growth(all), axis.growth, 100 * share_inside(all, 0)),
       std::nullopt});
}

}  // namespace

double error_growth(const std::vector<FarCase>& cases) {
  if (share_inside(cases, 0) >= level) return 0;
  double below = 0;
  double above = most_growth;
  for (int step = 0; step < 40; ++step) {
    const double middle = (below + above) / 2;
    (share_inside(cases, middle) >= level ? above : below) = middle;
  }
  return above;
}

void leave_far_out(const Dispatcher& dispatcher, const std::vector<DispatchSample>& samples,
                   Validation& validation) {
  const Dispatcher plain = with_any_sms(dispatcher);
  const std::vector<Kind> kinds = kinds_of(plain, samples);
  leave_out(plain, kinds,
            {"hidden sizes", 1, [](const DispatchSample& sample) { return sample.hidden; },
             profile::ErrorGrowth::hidden},
            validation);
  leave_out(plain, kinds,
            {"numbers of SMs", 2,
             [](const DispatchSample& sample) { return static_cast<double>(sample.sms); },
             profile::ErrorGrowth::sms},
            validation);
}

}  // namespace moesim::study
