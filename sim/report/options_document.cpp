#include "sim/report/options_document.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "sim/base/enum_names.hpp"
#include "sim/report/formats.hpp"
#include "sim/scenario/options.hpp"
#include "sim/study/sweep/result_row.hpp"

namespace moesim::report {
namespace {

using Json = nlohmann::ordered_json;
using scenario::Affects;
using scenario::Option;
using scenario::OptionType;
using study::Column;
using study::ColumnRole;
using study::ColumnType;

constexpr EnumNames<OptionType, 5> option_types{{{OptionType::whole, "whole"},
                                                 {OptionType::decimal, "decimal"},
                                                 {OptionType::choice, "choice"},
                                                 {OptionType::text, "text"},
                                                 {OptionType::document, "document"}}};
constexpr EnumNames<ColumnType, 3> column_types{
    {{ColumnType::text, "text"}, {ColumnType::number, "number"}, {ColumnType::boolean, "boolean"}}};
constexpr EnumNames<ColumnRole, 6> column_roles{{{ColumnRole::status, "status"},
                                                 {ColumnRole::option, "option"},
                                                 {ColumnRole::figure, "figure"},
                                                 {ColumnRole::loss, "loss"},
                                                 {ColumnRole::part, "part"},
                                                 {ColumnRole::provenance, "provenance"}}};

std::vector<std::string> affected(const Option& option) {
  if (option.affects == Affects::routing) return {"routing", "step"};
  if (option.affects == Affects::step) return {"step"};
  return {};
}

// Whether the default follows from the router alone: a chart need not say it beside the router.
bool has_default_of_router(const Option& option) {
  return option.set_default != nullptr && !option.after.empty() &&
         std::all_of(option.after.begin(), option.after.end(), [](const std::string& earlier) {
           return earlier == "router" || earlier == "router-dialect";
         });
}

Json json_of(const Option& option) {
  Json values = Json::array();
  for (const scenario::NamedValue& value : option.values) {
    values.push_back({{"name", value.name}, {"meaning", value.meaning}});
  }
  Json object = to_json({"name", "column", "type", "minimum", "maximum"},
                        {option.name, option.column, name_in(option_types, option.type),
                         option.minimum, option.maximum});
  object["values"] = std::move(values);
  object["default"] = option.default_text;
  object["default_from_router"] = has_default_of_router(option);
  object["help"] = option.help;
  object["affects"] = affected(option);
  return object;
}

}  // namespace

Json options_document() {
  Json options = Json::array();
  for (const Option& option : scenario::scenario_options()) options.push_back(json_of(option));
  Json columns = Json::array();
  for (const Column& column : study::result_columns()) {
    columns.push_back(to_json({"name", "type", "role", "unit", "meaning"},
                              {column.name, name_in(column_types, column.type),
                               name_in(column_roles, column.role), column.unit, column.meaning}));
  }
  return {{"options", options}, {"columns", columns}};
}

std::string options_table() {
  std::vector<std::vector<std::string>> lines{{"option", "type", "default", "affects"}};
  for (const Option& option : scenario::scenario_options()) {
    std::string affects;
    for (const std::string& what : affected(option)) {
      affects += (affects.empty() ? "" : ", ") + what;
    }
    lines.push_back(
        {option.flag(), name_in(option_types, option.type), option.default_text, affects});
  }
  return align(lines, {false, false, false, false});
}

}  // namespace moesim::report
