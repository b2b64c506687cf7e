#include "sim/study/sweep/baseline.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <string_view>

#include "sim/base/error.hpp"
#include "sim/base/formats/same_document.hpp"
#include "sim/base/text.hpp"
#include "sim/cluster/domain_links.hpp"
#include "sim/scenario/option.hpp"
#include "sim/scenario/options.hpp"
#include "sim/study/sweep/step_band.hpp"
#include "sim/uncertainty/ratios/capacity_ratio.hpp"
#include "sim/uncertainty/ratios/hidden_ratio.hpp"
#include "sim/uncertainty/ratios/link_ratio.hpp"

namespace moesim::study {
namespace {

// "router=top1,capacity-factor=1" as options.
scenario::OptionValues parse(const std::string& text) {
  scenario::OptionValues wanted;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    const std::size_t equals = item.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == item.size()) {
      throw UsageError(fmt::format(
          "--baseline {}: '{}' is not option=value, as in router=top1,capacity-factor=1", text,
          item));
    }
    std::string name = item.substr(0, equals);
    std::replace(name.begin(), name.end(), '_', '-');
    wanted[name] = item.substr(equals + 1);
    begin = end + 1;
  }
  return wanted;
}

void check_values(const std::vector<SweepPoint>& points, const scenario::OptionValues& wanted) {
  for (const auto& [name, value] : wanted) {
    std::set<std::string> known;
    for (const SweepPoint& point : points) {
      const auto typed = point.values.find(name);
      if (typed != point.values.end()) known.insert(typed->second);
    }
    if (known.empty()) {
      throw UsageError(
          fmt::format("--baseline: --{} is not given: a baseline is a row of the sweep", name));
    }
    if (known.count(value) == 0) {
      throw UsageError(fmt::format("--baseline: no row has --{} {}; rows have {}", name, value,
                                   fmt::join(known, ", ")));
    }
  }
}

// Whether two scenarios are the same but for options that `may_differ`.
template <class MayDiffer>
bool alike_but(const scenario::Scenario& one, const scenario::Scenario& other,
               const MayDiffer& may_differ) {
  const auto& options = scenario::scenario_options();
  return std::all_of(options.begin(), options.end(), [&](const scenario::Option& option) {
    return may_differ(std::string_view(option.name)) || option.cell(one) == option.cell(other);
  });
}

// By content: a file may give itself the name of another one.
bool same_profile(const scenario::Scenario& one, const scenario::Scenario& other) {
  return one.profile == other.profile ||
         (one.profile->name() == other.profile->name() &&
          is_one_document("hardware", one.profile_name, other.profile_name));
}
bool same_cluster(const scenario::Scenario& one, const scenario::Scenario& other) {
  return one.cluster == other.cluster ||
         (one.cluster->name == other.cluster->name &&
          is_one_document("clusters", one.cluster_name, other.cluster_name));
}
constexpr double level_of_columns = 0.9;  // p05 to p95
bool is_machine(std::string_view option) { return option == "profile" || option == "cluster"; }

// Whether both are padded to their capacity and differ in nothing else than published pairs of
// capacity factors and routers do: top-1 and top-2 among them, with blocks of one size. Their
// machine, the same, may be typed in two ways.
bool differ_in_capacity_alone(const scenario::Scenario& one, const scenario::Scenario& other) {
  const auto is_padded = [](const scenario::Scenario& scenario) {  // whatever the routing is
    return scenario.router.pads_exchange() && !scenario.router.pads_to_busiest();
  };
  if (!is_padded(one) || !is_padded(other)) return false;
  return alike_but(one, other, [](std::string_view name) {
    return is_machine(name) || name == "top-k" || uncertainty::is_capacity_choice(name);
  });
}

// Kernels are off alike on GPUs of one kind, exchanges inside domains with the same links.
// `error`: of the baseline.
uncertainty::OtherMachine other_machine(const scenario::Scenario& scenario,
                                        const scenario::Scenario& baseline,
                                        const uncertainty::SoftwareError& error) {
  using uncertainty::WorkClass;
  const bool other_gpu = scenario.profile->device().name != baseline.profile->device().name;
  const bool other_cluster = other_gpu || !same_cluster(scenario, baseline);
  uncertainty::OtherMachine machine;
  machine.has_measured_exchanges = error.has_measured_exchanges;
  machine.fitted_shares = error.fitted_shares;
  machine.apart.fill(other_gpu);
  machine.apart[static_cast<std::size_t>(WorkClass::across)] = other_cluster;
  machine.apart[static_cast<std::size_t>(WorkClass::inside)] =
      other_gpu || cluster::other_domain_links(*scenario.cluster, *baseline.cluster);
  return machine;
}

// The scatter of either of two steps on two clusters or with two profiles: what of their software
// and machines does not cancel.
double scatter_between(const scenario::Scenario& scenario, const uncertainty::SoftwareError& error,
                       const scenario::Scenario& baseline,
                       const uncertainty::SoftwareError& other) {
  const auto of_either = [](double one, double two) { return std::hypot(one, two) / std::sqrt(2); };
  if (same_profile(scenario, baseline)) {
    const bool links_alone = alike_but(scenario, baseline, is_machine);
    return std::hypot(links_alone ? 0 : error.scatter,
                      of_either(error.of_exchanges, other.of_exchanges));
  }
  const bool same_program = error.is_any && other.is_any;
  return std::hypot(error.scatter, same_program ? of_either(error.of_machine, other.of_machine)
                                                : of_either(error.factor * error.deviation,
                                                            other.factor * other.deviation));
}

// These cells of a row are absent where it is compared with nothing.
constexpr const char* comparison_columns[] = {"speed_over_baseline", "speed_over_baseline_p05",
                                              "speed_over_baseline_p95", "within_noise"};

// Whether two figures are the same as a CSV has them, in nine digits.
bool is_near(double one, double other) { return std::abs(one - other) <= 1e-7 * std::abs(other); }

// Whether `row` is compared with itself, which `baseline` is, or with another row `baseline`.
bool is_compared_with(const Row& row, const Row& baseline) {
  static const std::size_t ratio = column_index("speed_over_baseline");
  static const std::size_t speed = column_index("tokens_per_s_per_gpu");
  if (is_absent(row[ratio])) return false;
  if (&row == &baseline) {
    // A row is as fast as itself without any doubt, and no other is.
    return std::all_of(std::begin(comparison_columns), std::end(comparison_columns) - 1,
                       [&](const char* name) { return number_in(row[column_index(name)]) == 1; });
  }
  return is_near(number_in(row[ratio]) * number_in(baseline[speed]), number_in(row[speed]));
}

}  // namespace

std::optional<std::size_t> baseline_at(const std::vector<SweepPoint>& points,
                                       const std::vector<std::optional<std::size_t>>& baseline_of,
                                       std::size_t index) {
  if (index >= baseline_of.size() || !baseline_of[index]) return std::nullopt;
  const SweepPoint& baseline = points[*baseline_of[index]];
  if (!baseline.refusal.empty() || !baseline.scenario) return std::nullopt;
  return baseline_of[index];
}

ComparedRows compared_rows(const std::vector<SweepPoint>& points,
                           const std::vector<std::optional<std::size_t>>& baseline_of,
                           const std::map<std::size_t, Row>& rows) {
  const std::size_t ratio = column_index("speed_over_baseline");
  ComparedRows compared;
  for (const auto& [index, row] : rows) {
    compared.has_none = compared.has_none && is_absent(row[ratio]);
    const std::optional<std::size_t> baseline = baseline_at(points, baseline_of, index);
    const auto its_row = baseline ? rows.find(*baseline) : rows.end();
    if (baseline && its_row == rows.end()) continue;
    if (baseline ? is_compared_with(row, its_row->second) : is_absent(row[ratio])) {
      compared.alike.emplace(index, row);
    } else {
      compared.differs = true;
    }
  }
  return compared;
}

Row without_baseline(Row row) {
  for (const char* name : comparison_columns) row[column_index(name)] = Cell();
  return row;
}

Row with_baseline(Row row, const SpeedRatio& ratio) {
  const Cell cells[] = {figure_cell(ratio.value), figure_cell(ratio.p05), figure_cell(ratio.p95),
                        ratio.within_noise()};
  for (std::size_t at = 0; at < std::size(cells); ++at) {
    row[column_index(comparison_columns[at])] = cells[at];
  }
  return row;
}

std::vector<std::optional<std::size_t>> baselines(const std::vector<SweepPoint>& points,
                                                  const std::string& text) {
  const scenario::OptionValues wanted = parse(text);
  check_values(points, wanted);
  std::map<scenario::OptionValues, std::size_t> places;
  for (std::size_t index = 0; index < points.size(); ++index) {
    places.emplace(points[index].values, points[index].repeats.value_or(index));
  }
  std::vector<std::optional<std::size_t>> found;
  for (const SweepPoint& point : points) {
    scenario::OptionValues values = point.values;
    for (const auto& [name, value] : wanted) values[name] = value;
    const auto place = places.find(values);
    found.push_back(place == places.end() ? std::nullopt : std::optional(place->second));
  }
  return found;
}

namespace {

bool is_one_machine(const scenario::Scenario& one, const scenario::Scenario& other) {
  return same_profile(one, other) && same_cluster(one, other);
}

// Of one step whose machine is typed in two ways: by the noise of two runs, as `train --baseline`
// says.
SpeedRatio ratio_of_runs(double value) {
  for (const uncertainty::BandLevel& each : uncertainty::link_ratio_levels(0)) {
    if (each.level != level_of_columns) continue;
    return {value, value * std::exp(each.log_ratios.low), value * std::exp(each.log_ratios.high)};
  }
  throw Error("no band of the noise of two runs has the level of p05 to p95");
}

}  // namespace

SpeedRatio speed_ratio(const scenario::Scenario& scenario, const Outcome& outcome,
                       const scenario::Scenario& baseline_scenario, const Outcome& baseline) {
  const bool one_machine = is_one_machine(scenario, baseline_scenario);
  if (one_machine && alike_but(scenario, baseline_scenario, is_machine)) {
    return ratio_of_runs(outcome.tokens_per_s_per_gpu / baseline.tokens_per_s_per_gpu);
  }
  uncertainty::SoftwareError error =
      software_error(scenario, work_shares(scenario, outcome.parts_ms));
  uncertainty::OtherMachine machine;
  if (!one_machine) {
    const uncertainty::SoftwareError other =
        software_error(baseline_scenario, work_shares(baseline_scenario, baseline.parts_ms));
    error.scatter = scatter_between(scenario, error, baseline_scenario, other);
    machine = other_machine(scenario, baseline_scenario, other);
  } else if (differ_in_capacity_alone(scenario, baseline_scenario)) {
    error.scatter = error.capacity_scatter;
  }
  const uncertainty::RatioBand steps = uncertainty::ratio_band(
      outcome.draws, baseline.draws, error, outcome.averaged, baseline.averaged, machine);
  SpeedRatio ratio;
  ratio.value = outcome.tokens_per_s_per_gpu / baseline.tokens_per_s_per_gpu;
  // Tokens of a step over those of the other's.
  const double tokens = ratio.value * outcome.step_ms / baseline.step_ms;
  // Of the time of the other step over that of this one.
  uncertainty::Band band;
  band.levels = {{level_of_columns, {-steps.p95, -steps.p05}}};
  uncertainty::widen_by_hidden(outcome.hidden, baseline.hidden, band);
  const uncertainty::Interval& logs = band.widest().log_ratios;
  ratio.p05 = std::min(ratio.value, tokens * std::exp(logs.low));
  ratio.p95 = std::max(ratio.value, tokens * std::exp(logs.high));
  return ratio;
}

}  // namespace moesim::study
