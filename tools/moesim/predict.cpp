#include "sim/profile/predict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "sim/base/csv.hpp"
#include "sim/base/units.hpp"
#include "sim/study/option_values.hpp"
#include "tools/moesim/command.hpp"
#include "tools/moesim/output.hpp"

namespace moesim::tool {
namespace {

using Json = nlohmann::ordered_json;
using Params = std::map<std::string, std::string>;

struct Answer {
  std::string op;
  Params params;
  profile::Estimate estimate;
  std::int64_t ranks = 0;  // of an exchange; 0: one GPU's own operation
};

bool is_text(const std::string& parameter) {
  return parameter == "kernel" || parameter == "pass" || parameter == "nccl";
}

// Checks one parameter under the name of the flag or cell it came from.
void check_parameter(const std::string& name, const std::string& text, const std::string& what) {
  if (name == "bytes") {
    parse_bytes(text, what);
  } else if (!is_text(name)) {
    study::parse_whole(what, text, 1, std::numeric_limits<std::int32_t>::max());
  }
}

Answer ask(const profile::Profile& profile, const std::string& op, const Params& params) {
  Answer answer{op, params, profile::predict(profile, op, params), 0};
  const auto gpus = params.find("gpus");
  if (gpus != params.end()) answer.ranks = std::stoll(gpus->second);
  return answer;
}

Json parameter_value(const std::string& name, const std::string& text) {
  if (name == "bytes") return parse_bytes(text, name).count;
  if (is_text(name)) return text;
  return std::stoll(text);
}

// Exchanges are symmetric here: every rank sends and receives its last byte at the same time.
std::vector<double> rank_finish(const Answer& answer) {
  return std::vector<double>(static_cast<std::size_t>(answer.ranks), answer.estimate.time_us);
}

Json to_json(const Answer& answer) {
  Json params = Json::object();
  for (const std::string& name : profile::find_operation(answer.op).parameters) {
    params[name] = parameter_value(name, answer.params.at(name));
  }
  for (const auto& [name, text] : answer.params) {
    if (!params.contains(name)) params[name] = parameter_value(name, text);
  }
  Json object = {{"op", answer.op},
                 {"params", params},
                 {"time_us", answer.estimate.time_us},
                 {"time_us_p05", answer.estimate.time_us_p05},
                 {"time_us_p95", answer.estimate.time_us_p95},
                 {"provenance", profile::describe(answer.estimate)}};
  if (answer.ranks > 0) object["rank_finish_us"] = rank_finish(answer);
  return object;
}

const std::vector<std::string> added_columns{"time_us", "time_us_p05", "time_us_p95", "provenance",
                                             "rank_finish_us"};

// Shortest texts that read back to the same doubles.
std::vector<std::string> added_cells(const Answer& answer) {
  std::string finish;
  for (const double time : rank_finish(answer)) {
    finish += fmt::format("{}{}", finish.empty() ? "" : ";", time);
  }
  return {
      fmt::format("{}", answer.estimate.time_us), fmt::format("{}", answer.estimate.time_us_p05),
      fmt::format("{}", answer.estimate.time_us_p95), profile::describe(answer.estimate), finish};
}

std::vector<std::vector<std::string>> table_of(const std::vector<Answer>& answers) {
  std::vector<std::vector<std::string>> lines{
      {"operation", "parameters", "time us", "p05", "p95", "provenance"}};
  for (const Answer& answer : answers) {
    std::string params;
    for (const std::string& name : profile::find_operation(answer.op).parameters) {
      params += fmt::format("{}{} {}", params.empty() ? "" : ", ", name, answer.params.at(name));
    }
    lines.push_back({answer.op, params, fmt::format("{:.2f}", answer.estimate.time_us),
                     fmt::format("{:.2f}", answer.estimate.time_us_p05),
                     fmt::format("{:.2f}", answer.estimate.time_us_p95),
                     profile::describe(answer.estimate)});
  }
  return lines;
}

std::set<std::string> all_parameters() {
  std::set<std::string> names;
  for (const profile::Operation& op : profile::operations()) {
    names.insert(op.parameters.begin(), op.parameters.end());
    names.insert(op.optional.begin(), op.optional.end());
  }
  return names;
}

// A query file: columns op and parameters, spelt with - or _; columns of other names pass through.
class Queries {
 public:
  Queries(const std::string& path, const std::string& default_op)
      : table_(CsvTable::load(path)), default_op_(default_op) {
    const std::set<std::string> known = all_parameters();
    for (std::size_t column = 0; column < table_.columns.size(); ++column) {
      const std::string& title = table_.columns[column];
      std::string name = title;
      std::replace(name.begin(), name.end(), '_', '-');
      if (known.count(name) != 0) parameters_[name] = column;
      if (std::find(added_columns.begin(), added_columns.end(), title) != added_columns.end()) {
        throw UsageError(
            fmt::format("{}: line 1, column {}: a column that predict adds is there "
                        "already: rename or remove it",
                        path, title));
      }
    }
    if (default_op.empty()) table_.column("op");
  }

  std::vector<Answer> answers(const profile::Profile& profile) const {
    std::vector<Answer> answers;
    for (std::size_t row = 0; row < table_.rows.size(); ++row)
      answers.push_back(answer(profile, row));
    return answers;
  }

  std::string csv(const std::vector<Answer>& answers) const {
    std::vector<std::string> columns = table_.columns;
    columns.insert(columns.end(), added_columns.begin(), added_columns.end());
    std::string text = csv_line(columns);
    for (std::size_t row = 0; row < answers.size(); ++row) {
      std::vector<std::string> cells = table_.rows[row];
      const std::vector<std::string> added = added_cells(answers[row]);
      cells.insert(cells.end(), added.begin(), added.end());
      text += csv_line(cells);
    }
    return text;
  }

 private:
  std::string where(std::size_t row) const {
    return fmt::format("{}: line {}", table_.name, table_.lines[row]);
  }

  Answer answer(const profile::Profile& profile, std::size_t row) const {
    const std::size_t op_column = table_.find("op");
    std::string op = op_column == CsvTable::npos ? "" : table_.rows[row][op_column];
    if (op.empty()) op = default_op_;
    Params params;
    try {
      params = row_params(profile::find_operation(op), row);
    } catch (const UsageError& error) {
      const std::string text = error.what();
      if (text.starts_with(where(row))) throw;
      throw UsageError(fmt::format("{}, column op: {}", where(row), text));
    }
    try {
      return ask(profile, op, params);
    } catch (const Error& error) {
      throw Error(fmt::format("{}: {}", where(row), error.what()), error.code());
    }
  }

  // The parameters of the row's own operation; cells of other operations' columns are not its.
  Params row_params(const profile::Operation& op, std::size_t row) const {
    Params params;
    std::vector<std::string> names = op.parameters;
    names.insert(names.end(), op.optional.begin(), op.optional.end());
    for (const std::string& name : names) {
      const auto column = parameters_.find(name);
      const std::string text = column == parameters_.end() ? "" : table_.rows[row][column->second];
      const std::string what = fmt::format("{}, column {}", where(row), name);
      const bool required =
          std::find(op.parameters.begin(), op.parameters.end(), name) != op.parameters.end();
      if (text.empty() && required) {
        throw UsageError(fmt::format("{}: {} needs a value here", what, op.name));
      }
      if (text.empty()) continue;
      check_parameter(name, text, what);
      params[name] = text;
    }
    return params;
  }

  CsvTable table_;
  std::string default_op_;
  std::map<std::string, std::size_t> parameters_;  // name -> column
};

std::string rendered(const std::vector<Answer>& answers, report::Format format) {
  if (format == report::Format::table) {
    return report::align(table_of(answers), {false, false, true, true, true, false});
  }
  Json array = Json::array();
  for (const Answer& answer : answers) array.push_back(to_json(answer));
  return array.dump(2) + "\n";
}

std::string one_as_csv(const Answer& answer) {
  std::vector<std::string> columns{"op"};
  std::vector<std::string> cells{answer.op};
  for (const auto& [name, text] : answer.params) {
    columns.push_back(name);
    cells.push_back(text);
  }
  const std::vector<std::string> added = added_cells(answer);
  columns.insert(columns.end(), added_columns.begin(), added_columns.end());
  cells.insert(cells.end(), added.begin(), added.end());
  return csv_line(columns) + csv_line(cells);
}

ExitCode run_queries(const CommandLine& line, const profile::Profile& profile) {
  for (const std::string& name : all_parameters()) {
    if (line.has(name)) {
      throw UsageError(
          fmt::format("--{}: the queries of --in bring their own parameters: make it "
                      "a column",
                      name));
    }
  }
  const report::Format format = chosen_format(line, report::Format::csv);
  const Queries queries(line.get("in"), line.get("op"));
  const Output out(line.get("out"));
  const std::vector<Answer> answers = queries.answers(profile);
  out.write(format == report::Format::csv ? queries.csv(answers) : rendered(answers, format));
  return ExitCode::ok;
}

ExitCode run(const CommandLine& line) {
  const profile::Profile profile =
      profile::Profile::load(line.get("profile", study::default_profile));
  if (line.has("in")) return run_queries(line, profile);
  if (!line.has("op")) {
    throw UsageError(
        "--op: say which operation, or give queries with --in FILE; 'moesim predict "
        "--help' lists the operations");
  }
  const profile::Operation& op = profile::find_operation(line.get("op"));
  Params params;
  for (const std::string& name : all_parameters()) {
    if (!line.has(name)) continue;
    check_parameter(name, line.get(name), "--" + name);
    params[name] = line.get(name);
  }
  const report::Format format = chosen_format(line, report::Format::table);
  const Output out(line.get("out"));
  const Answer answer = ask(profile, op.name, params);
  out.write(format == report::Format::json  ? to_json(answer).dump(2) + "\n"
            : format == report::Format::csv ? one_as_csv(answer)
                                            : rendered({answer}, format));
  return ExitCode::ok;
}

std::vector<Flag> flags() {
  std::vector<Flag> flags{
      {"profile", "NAME|FILE", study::default_profile, "measured GPU and node"}};
  std::string names;
  std::map<std::string, std::string> users;
  for (const profile::Operation& op : profile::operations()) {
    names += (names.empty() ? "" : ", ") + op.name;
    for (const std::string& name : op.parameters)
      users[name] += (users[name].empty() ? "" : ", ") + op.name;
    for (const std::string& name : op.optional)
      users[name] += (users[name].empty() ? "" : ", ") + op.name;
  }
  flags.push_back({"op", "NAME", "", names});
  for (const auto& [name, ops] : users) {
    const char* value = name == "bytes" ? "SIZE" : is_text(name) ? "NAME" : "N";
    flags.push_back({name, value, "", "of " + ops});
  }
  flags.push_back({"in", "FILE", "", "CSV of queries: columns op and the parameters"});
  flags.push_back({"format", "NAME", "table; csv for --in", "table, csv or json"});
  flags.push_back(out_flag());
  return flags;
}

}  // namespace

Command predict_command() {
  return {"predict",
          "one operation from a profile; CSV of queries in, CSV out",
          "--op NAME [parameters] | --in FILE",
          "moesim predict --profile h100-sxm --op all-to-all --gpus 8 --bytes 64MiB",
          flags(),
          false,
          0,
          run};
}

}  // namespace moesim::tool
