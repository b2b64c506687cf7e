#include "sim/profile/predict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <utility>

#include "sim/base/csv.hpp"
#include "sim/base/text.hpp"
#include "sim/base/units.hpp"
#include "sim/network/schedules/exchange_schedule.hpp"
#include "sim/scenario/options.hpp"
#include "tools/moesim/command.hpp"
#include "tools/moesim/output.hpp"
#include "tools/moesim/predict_exchange.hpp"

namespace moesim::tool {
namespace {

using Json = nlohmann::ordered_json;
using Params = std::map<std::string, std::string>;

struct Answer {
  std::string op;
  Params params;
  profile::Estimate estimate;
  std::string provenance;
  std::vector<double> rank_finish_us;  // of an exchange; empty: one GPU's own operation
  double lower_us = 0;  // of an exchange by the port bound: the time is certain to lie between;
  double upper_us = 0;  // else 0
};

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_exchange(const profile::PredictedOperation& op) { return contains(op.parameters, "gpus"); }

bool is_text(const std::string& parameter) {
  return parameter == "kernel" || parameter == "pass" || parameter == "nccl" ||
         contains(ExchangePredictor::parameters(), parameter);
}

// Checks one parameter under the name of the flag or cell it came from.
void check_parameter(const std::string& name, const std::string& text, const std::string& what) {
  if (name == "bytes") {
    parse_bytes(text, what);
  } else if (!is_text(name)) {
    parse_whole(what, text, 1, std::numeric_limits<std::int32_t>::max());
  }
}

const std::string& default_profile() { return scenario::option_named("profile").default_text; }

// What answers queries: the profile, and for exchanges on a cluster the predictor beside it.
class Source {
 public:
  explicit Source(const CommandLine& line)
      : profile_(std::make_shared<const profile::Profile>(
            profile::Profile::load(line.get("profile", default_profile())))),
        exchanges_(profile_, line.has("profile")) {}

  Answer ask(const std::string& op, const Params& params) {
    Answer answer{op, params, {}, {}, {}, 0, 0};
    if (exchanges_.handles(op, params)) {
      network::ExchangePrediction time = exchanges_.answer(op, answer.params);
      answer.estimate = time.estimate;
      answer.provenance = std::move(time.provenance);
      answer.rank_finish_us = std::move(time.rank_finish_us);
      answer.lower_us = time.lower_us;
      answer.upper_us = time.upper_us;
      return answer;
    }
    answer.estimate = profile::predict(*profile_, op, params);
    answer.provenance = profile::describe(answer.estimate);
    // Exchanges inside a node are symmetric: every rank sends and receives its last byte at once.
    if (is_exchange(profile::find_operation(op))) {
      const auto ranks = static_cast<std::size_t>(std::stoll(params.at("gpus")));
      answer.rank_finish_us.assign(ranks, answer.estimate.time_us);
    }
    return answer;
  }

 private:
  std::shared_ptr<const profile::Profile> profile_;
  ExchangePredictor exchanges_;
};

Json parameter_value(const std::string& name, const std::string& text) {
  if (name == "bytes") return parse_bytes(text, name).count;
  if (is_text(name)) return text;
  return std::stoll(text);
}

Json to_json(const Answer& answer) {
  Json params = Json::object();
  for (const std::string& name : profile::find_operation(answer.op).parameters) {
    const auto found = answer.params.find(name);
    if (found != answer.params.end()) params[name] = parameter_value(name, found->second);
  }
  for (const auto& [name, text] : answer.params) {
    if (!params.contains(name)) params[name] = parameter_value(name, text);
  }
  Json object = {{"op", answer.op},
                 {"params", params},
                 {"time_us", answer.estimate.time_us},
                 {"time_us_p05", answer.estimate.time_us_p05},
                 {"time_us_p95", answer.estimate.time_us_p95},
                 {"provenance", answer.provenance}};
  if (!answer.rank_finish_us.empty()) object["rank_finish_us"] = answer.rank_finish_us;
  return object;
}

const std::vector<std::string> added_columns{"time_us", "time_us_p05", "time_us_p95", "provenance",
                                             "rank_finish_us"};

// Shortest texts that read back to the same doubles.
std::vector<std::string> added_cells(const Answer& answer) {
  std::string finish;
  for (const double time : answer.rank_finish_us) {
    finish += fmt::format("{}{}", finish.empty() ? "" : ";", time);
  }
  return {fmt::format("{}", answer.estimate.time_us),
          fmt::format("{}", answer.estimate.time_us_p05),
          fmt::format("{}", answer.estimate.time_us_p95), answer.provenance, finish};
}

std::vector<std::vector<std::string>> table_of(const std::vector<Answer>& answers) {
  std::vector<std::vector<std::string>> lines{
      {"operation", "parameters", "time us", "p05", "p95", "provenance"}};
  for (const Answer& answer : answers) {
    std::string params;
    const auto add = [&params](const std::string& name, const std::string& value) {
      params += fmt::format("{}{} {}", params.empty() ? "" : ", ", name, value);
    };
    const std::vector<std::string>& required = profile::find_operation(answer.op).parameters;
    for (const std::string& name : required) {
      if (answer.params.count(name) != 0) add(name, answer.params.at(name));
    }
    for (const auto& [name, value] : answer.params) {
      if (!contains(required, name)) add(name, value);
    }
    std::string time = fmt::format("{:.2f}", answer.estimate.time_us);
    if (answer.upper_us > answer.lower_us) {
      time = fmt::format("{:.2f} to {:.2f}", answer.lower_us, answer.upper_us);
    }
    lines.push_back({answer.op, params, time, fmt::format("{:.2f}", answer.estimate.time_us_p05),
                     fmt::format("{:.2f}", answer.estimate.time_us_p95), answer.provenance});
  }
  return lines;
}

// The ranks of an exchange that do not all finish together; of many, the last ones.
std::string rank_table(const Answer& answer) {
  const std::vector<double>& finish = answer.rank_finish_us;
  if (finish.empty()) return {};
  const auto [first, last] = std::minmax_element(finish.begin(), finish.end());
  if (*first == *last) return {};
  constexpr std::size_t most = 64;
  constexpr std::size_t shown_of_many = 16;
  std::vector<std::size_t> ranks(finish.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  const bool many = ranks.size() > most;
  if (many) {
    std::stable_sort(ranks.begin(), ranks.end(), [&](std::size_t one, std::size_t other) {
      return finish[one] > finish[other];
    });
    ranks.resize(shown_of_many);
  }
  std::vector<std::vector<std::string>> lines{{"rank", "finish us"}};
  for (const std::size_t rank : ranks) {
    lines.push_back({std::to_string(rank), fmt::format("{:.3f}", finish[rank])});
  }
  return fmt::format("\n{}{}", report::align(lines, {true, true}),
                     many ? fmt::format("(the {} last of {} ranks; --format json has all)\n",
                                        shown_of_many, finish.size())
                          : "");
}

// What an operation takes: its own parameters, and an exchange those of a cluster.
std::vector<std::string> parameters_of(const profile::PredictedOperation& op) {
  std::vector<std::string> names = op.parameters;
  names.insert(names.end(), op.optional.begin(), op.optional.end());
  if (is_exchange(op)) {
    const std::vector<std::string>& more = ExchangePredictor::parameters();
    names.insert(names.end(), more.begin(), more.end());
  }
  return names;
}

std::set<std::string> all_parameters() {
  std::set<std::string> names;
  for (const profile::PredictedOperation& op : profile::operations()) {
    for (const std::string& name : parameters_of(op)) names.insert(name);
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

  std::vector<Answer> answers(Source& source) const {
    std::vector<Answer> answers;
    for (std::size_t row = 0; row < table_.rows.size(); ++row)
      answers.push_back(answer(source, row));
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

  Answer answer(Source& source, std::size_t row) const {
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
      return source.ask(op, params);
    } catch (const Error& error) {
      throw Error(fmt::format("{}: {}", where(row), error.what()), error.code());
    }
  }

  // The parameters of the row's own operation; cells of other operations' columns are not its.
  Params row_params(const profile::PredictedOperation& op, std::size_t row) const {
    Params params;
    const auto cell = [&](const std::string& name) {
      const auto column = parameters_.find(name);
      return column == parameters_.end() ? std::string() : table_.rows[row][column->second];
    };
    const bool by_matrix = is_exchange(op) && !cell("matrix").empty();
    for (const std::string& name : parameters_of(op)) {
      const std::string text = cell(name);
      const std::string what = fmt::format("{}, column {}", where(row), name);
      if (text.empty() && contains(op.parameters, name) && !by_matrix) {
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
    return report::align(table_of(answers), {false, false, true, true, true, false}) +
           (answers.size() == 1 ? rank_table(answers.front()) : "");
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

ExitCode run_queries(const CommandLine& line, Source& source) {
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
  const std::vector<Answer> answers = queries.answers(source);
  out.write(format == report::Format::csv ? queries.csv(answers) : rendered(answers, format));
  return ExitCode::ok;
}

ExitCode run(const CommandLine& line) {
  Source source(line);
  if (line.has("in")) return run_queries(line, source);
  if (!line.has("op")) {
    throw UsageError(
        "--op: say which operation, or give queries with --in FILE; 'moesim predict "
        "--help' lists the operations");
  }
  const std::string asked = line.get("op");
  const profile::PredictedOperation& op = profile::find_operation(asked);
  Params params;
  for (const std::string& name : all_parameters()) {
    if (!line.has(name)) continue;
    check_parameter(name, line.get(name), "--" + name);
    params[name] = line.get(name);
  }
  const report::Format format = chosen_format(line, report::Format::table);
  const Output out(line.get("out"));
  const Answer answer = source.ask(op.name, params);
  out.write(format == report::Format::json  ? to_json(answer).dump(2) + "\n"
            : format == report::Format::csv ? one_as_csv(answer)
                                            : rendered({answer}, format));
  return ExitCode::ok;
}

// Value and meaning of each parameter of an operation.
struct ParameterHelp {
  const char* value;
  const char* text;
  std::vector<std::pair<std::string, std::string>> choices = {};
};
// The schedules of any exchange, and those of the collectives alone.
std::vector<std::pair<std::string, std::string>> schedule_choices() {
  std::vector<std::pair<std::string, std::string>> choices{
      {"two-level", "the profile's curve inside a node, NICs between, both at once"}};
  for (const network::ExchangeSchedule* schedule : network::all_schedules) {
    choices.emplace_back(schedule->name, schedule->help);
  }
  choices.emplace_back("ring, tree", "of all-reduce; ring of all-gather and reduce-scatter");
  return choices;
}

const std::map<std::string, ParameterHelp>& parameter_help() {
  static const std::map<std::string, ParameterHelp> all{
      {"kernel", {"NAME", "of memory: streaming (default), activation or normalization"}},
      {"pass", {"NAME", "of attention: forward (default) or backward"}},
      {"nccl",
       {"NAME", "of exchanges inside a node: a version the profile has curves of, as 2.27.3"}},
      {"bytes",
       {"SIZE",
        "of memory: read and written; of exchanges: nccl-tests' per-rank buffer, of which an "
        "all-to-all sends (n-1)/n"}},
      {"cluster",
       {"NAME|FILE",
        "of exchanges: nodes, NICs and fabric [beyond a node: the profile's usual cluster]; with "
        "--profile, its measurements calibrate what NCCL sends inside a domain"}},
      {"matrix",
       {"FILE",
        "of all-to-all: bytes from rank (row) to rank, .csv without header or .npy [N, N]"}},
      {"start",
       {"FILE", "with --matrix: when each rank begins, us: one CSV row or column, or .npy"}},
      {"schedule",
       {"NAME",
        "of exchanges on a cluster, in which order messages go; of equal blocks with a profile "
        "two-level, else of all-to-all burst, of others ring:",
        schedule_choices()}},
      {"distinct-share",
       {"SHARE",
        "of schedule deepep: rows that cross to a node over rows bound for it, 0 to 1 [1]"}},
      {"placement",
       {"LIST",
        "of exchanges on a cluster: contiguous (default), round-robin over nodes, or the GPU "
        "of each rank: 0,8,1,9"}},
      {"network",
       {"NAME",
        "of exchanges on a cluster: auto (default: exact, by the port bound where that is "
        "proven), flows or fast"}},
  };
  return all;
}

std::vector<Flag> flags() {
  std::vector<Flag> flags{{"profile", "NAME|FILE", default_profile(), "measured GPU and node"}};
  std::string names;
  std::map<std::string, std::string> users;
  for (const profile::PredictedOperation& op : profile::operations()) {
    names += (names.empty() ? "" : ", ") + op.name;
    for (const std::string& name : parameters_of(op)) {
      users[name] += (users[name].empty() ? "" : ", ") + op.name;
    }
  }
  flags.push_back({"op", "NAME", "", names});
  for (const auto& [name, ops] : users) {
    const auto help = parameter_help().find(name);
    if (help == parameter_help().end()) {
      flags.push_back({name, "N", "", "of " + ops});
    } else {
      flags.push_back({name, help->second.value, "", help->second.text,
                       scenario::named_values(help->second.choices)});
    }
  }
  flags.push_back({"in", "FILE", "", "CSV of queries: columns op and the parameters"});
  flags.push_back({"format", "NAME", "table; csv for --in", "table, csv or json"});
  flags.push_back(out_flag());
  return flags;
}

}  // namespace

Command predict_command() {
  return {"predict",
          "the time of one operation or exchange; CSV of queries in, CSV out",
          "--op NAME [parameters] | --in FILE",
          "moesim predict --profile h100-sxm --op all-to-all --gpus 8 --bytes 64MiB",
          flags(),
          false,
          0,
          run};
}

}  // namespace moesim::tool
