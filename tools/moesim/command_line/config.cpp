#include "tools/moesim/command_line/config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#ifdef MOESIM_YAML
#include <yaml-cpp/yaml.h>
#endif

#include "sim/base/file.hpp"
#include "sim/base/formats/csv.hpp"
#include "sim/base/formats/json_text.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/text.hpp"
#include "sim/cluster/cluster.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/rows/host_times.hpp"

namespace moesim::tool {
namespace {

// One option of a file, as it would be typed. `line` 0: not known.
struct Setting {
  std::string key;
  std::string text;
  std::size_t line = 0;
  std::vector<std::string> parts = {};  // of a list, which `text` holds with commas
};

std::string place(const std::string& file, const Setting& setting) {
  return setting.line == 0 ? fmt::format("{}: {}", file, setting.key)
                           : fmt::format("{}, line {}: {}", file, setting.line, setting.key);
}

[[noreturn]] void refuse(const std::string& file, const Setting& setting,
                         const std::string& reason) {
  throw UsageError(fmt::format("{}: {}", place(file, setting), reason));
}

constexpr const char* not_flat = "give one value, or a list of them: options are flat";

// The line of a key, 0 if it is written with escapes: JSON's parser keeps none.
std::size_t line_of_key(const std::string& text, const std::string& key) {
  const std::string quoted = json_text(nlohmann::json(key));
  for (std::size_t at = text.find(quoted); at != std::string::npos;
       at = text.find(quoted, at + 1)) {
    const std::size_t next = text.find_first_not_of(" \t\r\n", at + quoted.size());
    if (next == std::string::npos || text[next] != ':') continue;  // a value
    return 1 + static_cast<std::size_t>(
                   std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
  }
  return 0;
}

// The parser takes the last of equal keys.
void refuse_repeated_keys(const std::string& file, const std::string& text) {
  std::set<std::string> seen;
  const auto check = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    if (depth != 1 || event != nlohmann::json::parse_event_t::key) return true;
    const auto key = value.get<std::string>();
    if (!seen.insert(key).second) refuse(file, {key, "", line_of_key(text, key)}, "is there twice");
    return true;
  };
  [[maybe_unused]] const nlohmann::json parsed = nlohmann::json::parse(text, check);
}

std::string scalar_text(const std::string& file, const Setting& setting,
                        const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return fmt::format("{}", value.get<double>());  // 1e4: "10000"
  if (value.is_boolean() || value.is_number()) return json_text(value);
  refuse(file, setting, not_flat);
}

std::vector<Setting> settings_of_json(const std::string& file, const std::string& text) {
  const nlohmann::json document = parse_json(text, file);
  if (!document.is_object()) {
    throw UsageError(fmt::format("{}: an object of options is needed: {{\"gpus\": 64}}", file));
  }
  refuse_repeated_keys(file, text);
  std::vector<Setting> settings;
  for (const auto& [key, value] : document.items()) {
    Setting setting{key, "", line_of_key(text, key)};
    if (value.is_array()) {
      for (const nlohmann::json& part : value) {
        setting.parts.push_back(scalar_text(file, setting, part));
      }
      setting.text = fmt::format("{}", fmt::join(setting.parts, ","));
    } else {
      setting.text = scalar_text(file, setting, value);
    }
    settings.push_back(std::move(setting));
  }
  return settings;
}

#ifdef MOESIM_YAML
std::vector<Setting> settings_of_yaml(const std::string& file, const std::string& text) {
  std::vector<Setting> settings;
  try {
    const YAML::Node document = YAML::Load(text);
    if (!document.IsMap()) {
      throw UsageError(fmt::format("{}: a mapping of options is needed: gpus: 64", file));
    }
    for (const auto& entry : document) {
      if (!entry.first.IsScalar()) {
        throw UsageError(fmt::format("{}, line {}: a key is no name of an option", file,
                                     entry.first.Mark().line + 1));
      }
      Setting setting{entry.first.Scalar(), "",
                      static_cast<std::size_t>(entry.first.Mark().line) + 1};
      if (entry.second.IsScalar()) {
        setting.text = entry.second.Scalar();
      } else if (entry.second.IsSequence()) {
        for (const YAML::Node& part : entry.second) {
          if (!part.IsScalar()) refuse(file, setting, not_flat);
          setting.parts.push_back(part.Scalar());
        }
        setting.text = fmt::format("{}", fmt::join(setting.parts, ","));
      } else {
        refuse(file, setting, not_flat);
      }
      settings.push_back(std::move(setting));
    }
  } catch (const YAML::Exception& error) {
    throw UsageError(fmt::format("{}, line {}, column {}: {}", file, error.mark.line + 1,
                                 error.mark.column + 1, error.msg));
  }
  return settings;
}
#else
std::vector<Setting> settings_of_yaml(const std::string& file, const std::string&) {
  throw UsageError(fmt::format(
      "{}: this moesim was built without yaml-cpp (libyaml-cpp-dev): give a .json", file));
}
#endif

std::vector<Setting> settings_of(const std::string& file) {
  const std::string text = read_file(file);
  if (file.ends_with(".json")) return settings_of_json(file, text);
  if (file.ends_with(".yaml") || file.ends_with(".yml")) return settings_of_yaml(file, text);
  throw UsageError(fmt::format("--config {}: give a .yaml, .yml or .json of options", file));
}

std::string as_flag(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return key;
}

const Flag* flag_named(const std::vector<Flag>& flags, const std::string& name) {
  const auto found =
      std::find_if(flags.begin(), flags.end(), [&](const Flag& flag) { return flag.name == name; });
  return found == flags.end() ? nullptr : &*found;
}

[[noreturn]] void refuse_key(const std::string& file, const Setting& setting,
                             const Command& command, const std::vector<Flag>& flags) {
  std::vector<std::string> known;
  for (const Flag& flag : flags) known.push_back(flag.name);
  refuse(file, setting,
         fmt::format("no option of 'moesim {}'{}; 'moesim {} --help' lists them", command.name,
                     suggestion(as_flag(setting.key), known), command.name));
}

// A list of modules is one value of --recompute, whose values a slash separates.
void check_modules(const std::string& file, const Setting& setting) {
  const auto other =
      std::find_if(setting.parts.begin(), setting.parts.end(), [](const std::string& part) {
        return part == "none" || part.starts_with("full") || part.find(',') != std::string::npos;
      });
  if (setting.parts.size() < 2 || other == setting.parts.end()) return;
  refuse(file, setting,
         fmt::format("a list is of modules, which together are one value, and '{}' is no module: "
                     "write several values as one text, \"{}\"",
                     *other, fmt::join(setting.parts, "/")));
}

void take_file(const std::string& file, const Command& command, CommandLine& line) {
  const std::vector<Flag> flags = flags_of(command);
  std::set<std::string> seen;
  for (const Setting& setting : settings_of(file)) {
    const std::string name = as_flag(setting.key);
    const Flag* const flag = flag_named(flags, name);
    if (flag == nullptr || name == "config" || name == "from" || name == "help") {
      refuse_key(file, setting, command, flags);
    }
    if (!seen.insert(name).second) refuse(file, setting, "is there twice");
    if (setting.text.empty()) refuse(file, setting, "the value is empty");
    if (name == "recompute") check_modules(file, setting);
    if (flag->value.empty()) {
      if (setting.text != "true" && setting.text != "false") {
        refuse(file, setting, fmt::format("'{}': true or false", setting.text));
      }
      if (setting.text == "true") line.values.emplace(name, "");
      continue;
    }
    line.values.emplace(name, setting.text);
  }
}

using Cells = std::map<std::string, std::string>;  // of a row, by option

std::string cell_of(const Cells& row, const char* option) {
  const auto found = row.find(option);
  return found == row.end() ? "" : found->second;
}

// One micro-step of all GPUs, which is the default.
bool is_one_micro_step(const Cells& row) {
  const auto gpus = parse_number<std::int64_t>(cell_of(row, "gpus"));
  const auto sequences = parse_number<std::int64_t>(cell_of(row, "micro-batch"));
  const auto batch = parse_number<std::int64_t>(cell_of(row, "global-batch"));
  const bool is_pipelined = row.count("pipeline-parallel") != 0;  // a row of train
  return gpus && sequences && batch && !is_pipelined && *batch == *gpus * *sequences;
}

// Whether a row has the capacity that a balanced load needs, which is the default of simulate and
// sweep.
bool is_balanced_capacity(const Cells& row) {
  const bool library = cell_of(row, "capacity-convention") == "library";
  const auto factor = parse_number<double>(cell_of(row, "capacity-factor"));
  const auto balanced = parse_number<double>(library ? "1" : cell_of(row, "top-k"));
  return factor && balanced && *factor == *balanced && row.count("pipeline-parallel") == 0;
}

// What a row says as well because of another option: a typed one of those goes before both. Of
// some, only where the row has the default of its own options: `is_default`.
struct Implied {
  const char* option;
  std::vector<const char*> typed;
  bool (*is_default)(const Cells& row) = nullptr;
};
const std::vector<Implied>& implied_options() {
  static const std::vector<Implied> all{
      {"top-k", {"router", "model"}},
      {"router", {"model"}},
      {"experts", {"model", "routing"}},
      {"expert-parallel", {"model", "experts", "gpus"}},
      {"sequence-length", {"model"}},
      {"tokens-per-gpu", {"micro-batch", "sequence-length", "model"}},
      {"micro-batch", {"tokens-per-gpu"}},
      {"cluster", {"profile"}},
      {"ranks-per-domain", {"profile", "cluster"}},
      {"capacity-convention", {"router-dialect"}},
      {"min-capacity", {"router-dialect"}},
      {"priority", {"router-dialect"}},
      {"weights", {"router-dialect"}},
      {"padding", {"router-dialect"}},
      {"group-score", {"router-dialect"}},
      {"second-expert", {"router-dialect"}},
      {"global-batch",
       {"gpus", "micro-batch", "sequence-length", "tokens-per-gpu", "model"},
       is_one_micro_step},
      {"capacity-factor",
       {"router", "top-k", "model", "capacity-convention"},
       is_balanced_capacity},
  };
  return all;
}

bool is_replaced(const std::string& option, const std::map<std::string, std::string>& typed,
                 const Cells& row) {
  for (const Implied& implied : implied_options()) {
    if (option != implied.option) continue;
    if (implied.is_default != nullptr && !implied.is_default(row)) return false;
    return std::any_of(implied.typed.begin(), implied.typed.end(),
                       [&](const char* other) { return typed.count(other) != 0; });
  }
  return false;
}

// Whether nobody gave this time of the host to the step of the row: it is the default then, which a
// row has too.
bool is_assumed_host(const Flag& flag, const std::string& cell, const Cells& row) {
  static const std::set<std::string> of_host = {"launch-us", "host-read-us", "step-overhead-ms"};
  if (!of_host.contains(flag.name)) return false;
  const std::string given = cell_of(row, as_flag(given_host_column).c_str());
  if (given.find(column_of(flag)) != std::string::npos) return false;
  return parse_number<double>(cell) == parse_number<double>(flag.default_text);
}

// Options of the commands whose results a row can be that it sets, not to nothing or one, and that
// this command does not have: "--zero 2".
std::vector<std::string> options_left_out(const CsvTable& table, std::size_t row,
                                          const Command& command) {
  const std::vector<Flag> own = flags_of(command);
  std::vector<std::string> found;
  std::set<std::string> seen;
  for (const Command& other : {train_command(), sweep_command()}) {
    for (const Flag& flag : flags_of(other)) {
      if (flag.value.empty() || flag_named(own, flag.name) != nullptr) continue;
      const auto column = std::find(table.columns.begin(), table.columns.end(), column_of(flag));
      if (column == table.columns.end() || !seen.insert(flag.name).second) continue;
      const std::string& cell =
          table.rows[row][static_cast<std::size_t>(column - table.columns.begin())];
      const bool says_nothing = cell.empty() || cell == "none" || cell == "false" || cell == "0" ||
                                cell == "1" || cell == flag.default_text;
      if (!says_nothing) found.push_back(fmt::format("--{} {}", flag.name, cell));
    }
  }
  return found;
}

// FILE:ROW of a result; rows are numbered from 1, without the heading.
void take_row(const std::string& text, const Command& command, CommandLine& line) {
  const std::size_t colon = text.rfind(':');
  const std::optional<std::size_t> number =
      colon == std::string::npos
          ? std::nullopt
          : parse_number<std::size_t>(std::string_view(text).substr(colon + 1));
  if (!number || colon == 0) {
    throw UsageError(fmt::format(
        "--from: '{}': give FILE:ROW of a CSV that moesim wrote, the first row after the heading "
        "is 1: sweep.csv:3",
        text));
  }
  const CsvTable table = CsvTable::load(text.substr(0, colon));
  if (*number < 1 || *number > table.rows.size()) {
    throw UsageError(fmt::format("--from: {} has no row {}: {} rows after the heading", table.name,
                                 *number, table.rows.size()));
  }
  const std::vector<Flag> flags = flags_of(command);
  const std::map<std::string, std::string> typed = line.values;
  Cells row;
  for (std::size_t column = 0; column < table.columns.size(); ++column) {
    row.emplace(as_flag(table.columns[column]), table.rows[*number - 1][column]);
  }
  if (cell_of(row, "status") == "refused" && cell_of(row, "micro-batch").empty()) {
    throw UsageError(fmt::format("--from: row {} of {} has no layout: {}", *number, table.name,
                                 cell_of(row, "reason")));
  }
  std::size_t taken = 0;
  for (std::size_t column = 0; column < table.columns.size(); ++column) {
    const std::string name = as_flag(table.columns[column]);
    const std::string& cell = table.rows[*number - 1][column];
    const Flag* const flag = flag_named(flags, name);
    if (flag == nullptr || flag->value.empty()) continue;  // a figure
    ++taken;
    if (is_assumed_host(*flag, cell, row)) continue;
    if (!cell.empty() && !is_replaced(name, typed, row) && line.values.emplace(name, cell).second) {
      line.of_row.insert(name);
    }
  }
  if (taken == 0) {
    throw UsageError(fmt::format("--from: {} has no column that is an option of 'moesim {}'",
                                 table.name, command.name));
  }
  const std::vector<std::string> left = options_left_out(table, *number - 1, command);
  if (!left.empty()) {
    note(fmt::format("note: --from: 'moesim {}' has no option for these of the row: {}",
                     command.name, fmt::join(left, ", ")));
  }
}

}  // namespace

Flag config_flag() {
  return {"config", "FILE", "none",
          "options by their names in a .yaml or .json, lists too; typed ones go before"};
}

Flag from_flag() {
  return {"from", "FILE:ROW", "none",
          "the options of a row of a CSV that moesim wrote, 1 is the first; typed ones go before"};
}

std::map<std::string, std::string> options_in_config(const std::string& file) {
  std::map<std::string, std::string> options;
  for (const Setting& setting : settings_of(file)) {
    options.emplace(as_flag(setting.key), setting.text);
  }
  return options;
}

void take_config(const Command& command, CommandLine& line) {
  try {
    if (line.has("config")) take_file(line.get("config"), command, line);
  } catch (const UnreadableFile& error) {
    throw UsageError(fmt::format("--config: {}", error.what()));
  }
  try {
    if (line.has("from")) take_row(line.get("from"), command, line);
  } catch (const UnreadableFile& error) {
    throw UsageError(fmt::format("--from: {}", error.what()));
  }
  line.values.erase("config");
  line.values.erase("from");
}

void take_profile_of_cluster(const Command& command, CommandLine& line) {
  const std::vector<Flag> flags = flags_of(command);
  const Flag* const flag = flag_named(flags, "profile");
  const bool has_default = flag != nullptr && !flag->default_text.empty();
  const bool says_more = line.has("profile") || line.has("config") || line.has("from");
  const bool takes = command.takes_profile_of_cluster && has_default;
  if (!takes || !line.has("cluster") || says_more) return;
  const std::string clusters = line.get("cluster");
  std::set<std::string> profiles;
  for (const std::string_view name : split(clusters, ',')) {
    profiles.insert(cluster::Cluster::load(std::string(name)).profile);
  }
  profiles.erase("");  // of clusters that may have any
  if (profiles.size() > 1) {
    note(
        fmt::format("note: the clusters {} have different GPUs; kernels are those of {}, the "
                    "default, on all: give "
                    "each its --profile in a run of its own",
                    clusters, flag->default_text));
    return;
  }
  if (profiles.empty() || *profiles.begin() == flag->default_text) return;
  const std::string& found = *profiles.begin();
  line.values["profile"] = found;
  note(fmt::format("note: --profile {}, the GPUs of {}; the default is {}", found, clusters,
                   flag->default_text));
}

}  // namespace moesim::tool
