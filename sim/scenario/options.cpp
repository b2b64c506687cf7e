#include "sim/scenario/options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

#include "sim/base/cell.hpp"
#include "sim/base/check_range.hpp"
#include "sim/base/error.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/text.hpp"
#include "sim/cluster/rank_placement.hpp"
#include "sim/scenario/option_table.hpp"
#include "sim/scenario/router_options.hpp"

namespace moesim::scenario {
namespace {

std::vector<Option> declare_options() {
  OptionTable table;
  declare_documents(table);
  declare_layout(table);
  declare_router(table);
  declare_exchange(table);
  declare_software(table);
  declare_batch(table);
  declare_training(table);
  declare_scores(table);
  declare_environment(table);
  declare_run(table);
  return table.take();
}

// Orders options: those that an option comes after first, otherwise in grid order.
void order(const Option& option, std::set<std::string>& placed,
           std::vector<const Option*>& ordered) {
  if (!placed.insert(option.name).second) return;
  for (const std::string& earlier : option.after) order(option_named(earlier), placed, ordered);
  ordered.push_back(&option);
}

const std::vector<const Option*>& in_resolution_order() {
  static const std::vector<const Option*> ordered = [] {
    std::set<std::string> placed;
    std::vector<const Option*> options;
    for (const Option& option : scenario_options()) order(option, placed, options);
    return options;
  }();
  return ordered;
}

// One scenario takes one value of each option: a list is a likely slip, with an answer.
void refuse_list(const Option& option, const std::string& text) {
  const bool is_list = option.is_number()
                           ? text.find_first_of(",:") != std::string::npos
                           : option.name == "router" && text.find(',') != std::string::npos;
  if (!is_list) return;
  throw UsageError(
      fmt::format("{}: '{}' is a list or a range, and here is room for one value: "
                  "'moesim sweep' takes both",
                  option.flag(), text));
}

}  // namespace

Decimal OptionTable::parse_decimal(const std::string& flag, const std::string& text,
                                   const Decimal& low, const Decimal& high) {
  const bool is_negative = text.starts_with('-') && parse_number<double>(text) &&
                           text.find_first_not_of("0123456789.", 1) == std::string::npos;
  if (!is_negative) {
    const Decimal value = Decimal::parse(text, flag);
    if (low <= value && value <= high) return value;
  }
  throw UsageError(
      fmt::format("{}: {} is out of range: give {} to {}", flag, text, low.text(), high.text()));
}

Option& OptionTable::add(const char* name, OptionType type, const char* placeholder) {
  Option& option = options_.emplace_back();
  option.name = name;
  option.column = name;
  std::replace(option.column.begin(), option.column.end(), '-', '_');
  option.type = type;
  option.placeholder = placeholder;
  return option;
}

Cell Option::cell(const Scenario& scenario) const {
  return applies == nullptr || applies(scenario) ? value(scenario) : Cell();
}

Cell Option::cell_of(const std::string& text) const {
  if (type == OptionType::whole) {
    return parse_whole(flag(), text, 0, std::numeric_limits<std::int64_t>::max());
  }
  if (type == OptionType::decimal) return Decimal::parse(text, flag());
  return text;
}

std::vector<NamedValue> named_values(
    const std::vector<std::pair<std::string, std::string>>& forms) {
  std::vector<NamedValue> values;
  for (const auto& [name, meaning] : forms) values.push_back({name, meaning});
  return values;
}

const std::vector<Option>& scenario_options() {
  static const std::vector<Option> options = declare_options();
  return options;
}

const Option& option_named(const std::string& name) {
  const std::vector<Option>& options = scenario_options();
  const auto found = std::find_if(options.begin(), options.end(),
                                  [&](const Option& option) { return option.name == name; });
  if (found == options.end()) {
    std::vector<std::string> names;
    for (const Option& option : options) names.push_back(option.name);
    throw UsageError(
        fmt::format("there is no scenario option {}{}", name, suggestion(name, names)));
  }
  return *found;
}

void check_value(const std::string& name, const std::string& text, DocumentCache& documents) {
  const Option& option = option_named(name);
  if (text.empty()) throw UsageError(fmt::format("{}: the value is empty", option.flag()));
  option.check_text(text, documents);
}

Scenario fill_in(const OptionValues& values, DocumentCache& documents, Use use) {
  Scenario scenario;
  Resolution at{values, documents, use, scenario};
  for (const Option* option : in_resolution_order()) {
    if (const std::string* text = at.find(option->name); text != nullptr) {
      option->set(*text, at);
    } else if (option->set_default != nullptr) {
      option->set_default(at);
    } else {
      option->set(option->default_text, at);
    }
    if (option->then != nullptr) option->then(at);
  }
  scenario.cluster = cluster::on_parts_of_domains(scenario.cluster, scenario.gpus);
  return scenario;
}

namespace {

// A number that was typed is inside; a field may have been set otherwise.
void check_range_of(const Option& option, const Scenario& scenario) {
  if (is_absent(option.minimum)) return;
  const Cell cell = option.cell(scenario);
  if (is_absent(cell)) return;
  check_range(option.flag(), number_in(cell), number_in(option.minimum), number_in(option.maximum));
}

}  // namespace

void check(const Scenario& scenario, Use use) {
  const auto check_document = [](bool is_there, const char* name) {
    if (!is_there) throw UsageError(fmt::format("--{}: the scenario has none: read one", name));
  };
  check_document(scenario.model != nullptr, "model");
  check_document(scenario.profile != nullptr || use != Use::step, "profile");
  check_document(scenario.cluster != nullptr, "cluster");
  for (const Option& option : scenario_options()) check_range_of(option, scenario);
  for (const Option& option : scenario_options()) {
    if (option.check != nullptr) option.check(scenario, use);
  }
}

Scenario resolve(const OptionValues& values, DocumentCache& documents, Use use) {
  for (const auto& [name, text] : values) {
    refuse_list(option_named(name), text);
    check_value(name, text, documents);
  }
  Scenario scenario = fill_in(values, documents, use);
  check(scenario, use);
  return scenario;
}

std::vector<IdleOption> idle_options(const OptionValues& typed,
                                     std::span<const Scenario* const> scenarios, Asker asker) {
  std::vector<IdleOption> idle;
  if (scenarios.empty()) return idle;
  for (const Option& option : scenario_options()) {
    if (option.idle == nullptr || !typed.contains(option.name)) continue;
    const auto is_used = [&](const Scenario* scenario) {
      return option.idle({*scenario, typed, asker}).empty();
    };
    if (std::any_of(scenarios.begin(), scenarios.end(), is_used)) continue;
    idle.push_back({option.name, std::string(option.idle({*scenarios.front(), typed, asker}))});
  }
  return idle;
}

}  // namespace moesim::scenario
