#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "sim/base/contains.hpp"
#include "sim/base/formats/csv.hpp"
#include "sim/base/formats/json_text.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/base/text.hpp"
#include "sim/base/units.hpp"
#include "sim/network/schedules/exchange_schedule.hpp"
#include "sim/network/schedules/exchange_settings.hpp"
#include "sim/profile/missing_parameter.hpp"
#include "sim/scenario/options.hpp"
#include "tools/moesim/base/command.hpp"
#include "tools/moesim/base/kept_result.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/command_line/config.hpp"
#include "tools/moesim/predict/predict_dispatch.hpp"
#include "tools/moesim/predict/predict_queries.hpp"
#include "tools/moesim/predict/predict_source.hpp"

namespace moesim::tool {
namespace {

using Json = nlohmann::ordered_json;

// A number, except where a refused row has one that none can be: that text.
Json parameter_value(const std::string& name, const std::string& text) {
  if (is_text_parameter(name)) return text;
  try {
    if (name == "bytes") return parse_bytes(text, name).count;
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    return parse_whole(name, text, -most, most);
  } catch (const NoAnswer&) {
    return text;
  }
}

Json to_json(const QueryAnswer& answer) {
  Json params = Json::object();
  for (const std::string& name : profile::find_operation(answer.op).parameters) {
    const auto found = answer.params.find(name);
    if (found != answer.params.end()) params[name] = parameter_value(name, found->second);
  }
  for (const auto& [name, text] : answer.params) {
    if (!params.contains(name)) params[name] = parameter_value(name, text);
  }
  Json object = Json::object();
  for (const auto& [column, cell] : answer.passed_through) object[column] = cell;
  object.update({{"op", answer.op}, {"params", params}});
  if (!answer.refusal.empty()) {
    object.update({{"status", "refused"}, {"reason", answer.refusal}});
    return object;
  }
  object.update({{"time_us", answer.estimate.time_us},
                 {"time_us_p05", answer.estimate.time_us_p05},
                 {"time_us_p95", answer.estimate.time_us_p95},
                 {"provenance", answer.provenance}});
  if (!answer.rank_finish_us.empty()) object["rank_finish_us"] = answer.rank_finish_us;
  if (const auto bus = bus_bandwidth(answer)) object[bus_column] = *bus;
  return object;
}

// The columns note and id of a file in front of its answers. The first of `lines` is the heading.
void pass_through(const std::vector<QueryAnswer>& answers,
                  std::vector<std::vector<std::string>>& lines) {
  std::vector<std::string> heading;
  for (std::size_t row = 0; row < answers.size(); ++row) {
    std::vector<std::string> cells;
    heading.clear();
    for (const auto& [column, cell] : answers[row].passed_through) {
      heading.push_back(column);
      cells.push_back(cell);
    }
    lines[row + 1].insert(lines[row + 1].begin(), cells.begin(), cells.end());
  }
  lines.front().insert(lines.front().begin(), heading.begin(), heading.end());
}

std::vector<std::vector<std::string>> table_of(const std::vector<QueryAnswer>& answers) {
  const bool has_exchanges = has_bus_bandwidth(answers);
  std::vector<std::vector<std::string>> lines{
      {"operation", "parameters", "time us", "p05", "p95", "provenance"}};
  if (has_exchanges) lines.front().insert(lines.front().end() - 1, "busbw GB/s");
  for (const QueryAnswer& answer : answers) {
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
    if (answer.refusal.empty()) {
      lines.push_back({answer.op, params, time, fmt::format("{:.2f}", answer.estimate.time_us_p05),
                       fmt::format("{:.2f}", answer.estimate.time_us_p95), answer.provenance});
    } else {
      lines.push_back({answer.op, params, "", "", "", "refused: " + answer.refusal});
    }
    if (!has_exchanges) continue;
    const std::optional<double> bus = bus_bandwidth(answer);
    lines.back().insert(lines.back().end() - 1, bus ? fmt::format("{:.2f}", *bus) : "");
  }
  pass_through(answers, lines);
  return lines;
}

// The ranks of an exchange that do not all finish together; of many, the last ones.
std::string rank_table(const QueryAnswer& answer) {
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

// What the bands of products do not hold: other software. The figures are of the products that
// microsoft/vidur timed as operators of four models (profiles/ACCURACY.md, "Other runs").
std::string band_note(const std::vector<QueryAnswer>& answers) {
  const bool any = std::any_of(answers.begin(), answers.end(), [](const QueryAnswer& answer) {
    return answer.op == "gemm" && answer.refusal.empty() &&
           answer.estimate.origin == profile::Origin::published;
  });
  if (!any) return {};
  return "\np05 to p95: 90 % for the machine and library of the profile's own table. Of another "
         "library's products nine\ntenths took 0.82 to 1.26 times as long on A100, 1.01 to 1.72 "
         "times on H100; no other GPU was checked.\n";
}

std::string rendered(const std::vector<QueryAnswer>& answers, report::Format format) {
  if (format == report::Format::table) {
    const std::vector<std::vector<std::string>> lines = table_of(answers);
    const std::size_t passed = answers.empty() ? 0 : answers.front().passed_through.size();
    std::vector<bool> right(lines.front().size(), true);
    std::fill_n(right.begin(), passed + 2, false);
    right.back() = false;
    return report::align(lines, right) + (answers.size() == 1 ? rank_table(answers.front()) : "") +
           band_note(answers);
  }
  Json array = Json::array();
  for (const QueryAnswer& answer : answers) array.push_back(to_json(answer));
  const bool has_refused = std::any_of(
      array.begin(), array.end(), [](const Json& object) { return object.contains("status"); });
  for (Json& object : array) {
    if (has_refused && !object.contains("status")) object["status"] = "ok";
  }
  return json_text(array, 2) + "\n";
}

std::string one_as_csv(const QueryAnswer& answer) {
  std::vector<std::string> columns{"op"};
  std::vector<std::string> cells{answer.op};
  for (const auto& [name, text] : answer.params) {
    columns.push_back(name);
    cells.push_back(text);
  }
  const std::vector<std::string> added = answer_cells(answer);
  columns.insert(columns.end(), answer_columns().begin(), answer_columns().end());
  cells.insert(cells.end(), added.begin(), added.end());
  if (has_bus_bandwidth({answer})) {
    columns.emplace_back(bus_column);
    cells.push_back(bus_cell(answer));
  }
  return csv_line(columns) + csv_line(cells);
}

ExitCode run_queries(const CommandLine& line, QuerySource& source) {
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
  const std::vector<QueryAnswer> answers = queries.answers(source);
  write_keeping_others(
      out, format == report::Format::csv ? queries.csv(answers) : rendered(answers, format));
  const auto is_refused = [](const QueryAnswer& answer) { return !answer.refusal.empty(); };
  const auto first = std::find_if(answers.begin(), answers.end(), is_refused);
  if (first == answers.end()) return ExitCode::ok;
  const std::ptrdiff_t refused = std::count_if(first, answers.end(), is_refused);
  note(fmt::format("warning: {} of {} queries were refused; the first: {}: {}", refused,
                   answers.size(), queries.where(static_cast<std::size_t>(first - answers.begin())),
                   first->refusal));
  return refused == std::ssize(answers) ? ExitCode::failure : ExitCode::ok;
}

QueryAnswer answer_of_options(QuerySource& source, const std::string& op,
                              const QueryParams& params) {
  try {
    return source.ask(op, params);
  } catch (const profile::WrongParameters& error) {
    throw UsageError(error.of_options());
  }
}

ExitCode run(const CommandLine& line) {
  QuerySource source(line.get("profile"));
  if (line.has("in")) return run_queries(line, source);
  if (!line.has("op")) {
    throw UsageError(
        "--op: say which operation, or give queries with --in FILE; 'moesim predict "
        "--help' lists the operations");
  }
  const std::string asked = line.get("op");
  const profile::PredictedOperation& op = profile::find_operation(asked);
  QueryParams params;
  for (const std::string& name : all_parameters()) {
    if (!line.has(name)) continue;
    check_parameter(name, line.get(name), "--" + name);
    params[name] = line.get(name);
  }
  const report::Format format = chosen_format(line, report::Format::table);
  const Output out(line.get("out"));
  const QueryAnswer answer = answer_of_options(source, op.name, params);
  if (!line.has("profile") && !line.has("cluster") && format == report::Format::table) {
    note(fmt::format("note: on {}, the default; --profile NAME is another GPU",
                     scenario::option_named("profile").default_text));
  }
  write_keeping_others(out, format == report::Format::json  ? json_text(to_json(answer), 2) + "\n"
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
      {"two-level", "the profile's curve inside a node, NCCL's law between"}};
  for (const network::ExchangeSchedule* schedule : network::all_schedules) {
    choices.emplace_back(schedule->name, schedule->help);
  }
  choices.emplace_back("ring, tree", "of all-reduce; ring of all-gather and reduce-scatter");
  return choices;
}

// What a size is that several operations take.
const std::map<std::string, std::string>& size_meaning() {
  static const std::map<std::string, std::string> all{
      {"batch", "sequences"},
      {"experts", "of all GPUs together; of expert-ffn: those of the GPU"},
      {"ffn", "inner width of an expert"},
      {"gpus", "how many take part"},
      {"head-dim", "width of a head"},
      {"heads", "query heads of the GPU"},
      {"hidden", "elements of a token"},
      {"k", "of gemm: columns of A, rows of B; of quantize: columns; else experts of a token"},
      {"kv-heads", "heads of keys and values of the GPU"},
      {"m", "rows of A"},
      {"n", "columns of B"},
      {"rows", "of all experts of the GPU together"},
      {"sequence", "tokens of a sequence"},
      {"tokens", "of each GPU"}};
  return all;
}

const std::map<std::string, ParameterHelp>& parameter_help() {
  static const std::map<std::string, ParameterHelp> all{
      {"kernel",
       {"NAME",
        "of memory: streaming (default), activation or normalization; of expert-ffn: fused "
        "(default), the published call of a serving engine with its gather and sum of rows, or "
        "separate or batched products; 'simulate --expert-products' takes each"}},
      {"dtype",
       {"NAME",
        "of gemm, attention, latent-attention, expert-ffn: a data type that the profile has "
        "[bf16]; of quantize (finding a scale for each row, the cast itself left out): to "
        "which [fp8]"}},
      {"rows-per-expert",
       {"LIST", "of expert-ffn, in the place of rows and experts: of each expert, as 512,0,80"}},
      {"pass", {"NAME", "of attention and latent-attention: forward (default) or backward"}},
      {"dispatcher",
       {"NAME|FILE",
        "of dispatch, and of combine as its exchange: the library, a document of "
        "profiles/dispatchers"}},
      {"sms",
       {"N", "of dispatch and combine by a dispatcher: SMs of its kernels [its usual ones]"}},
      {"row-format",
       {"NAME", "of dispatch: bf16 (default), or fp8 with a scale for each 128 values"}},
      {"node-limit",
       {"N",
        "of dispatch and combine between nodes: the most nodes (domains) that a token's experts "
        "lie on, 4 in DeepSeek-V3 [any]"}},
      {"transport",
       {"NAME",
        "of dispatch and combine between nodes: gpu (InfiniBand, RoCE) or proxy (EFA) writes to "
        "the NICs [as the cluster says]"}},
      {"nccl",
       {"NAME", "of exchanges inside a node: a version the profile has curves of, as 2.27.3"}},
      {"bytes",
       {"SIZE",
        "of memory: read and written; of exchanges: nccl-tests' per-rank buffer, of which an "
        "all-to-all sends (n-1)/n"}},
      {"cluster",
       {"NAME|FILE",
        "of exchanges and dispatchers: nodes, NICs and fabric [beyond a node: the profile's usual "
        "cluster]; with "
        "--profile, its measurements calibrate what NCCL sends inside a domain, at the document's "
        "line rate"}},
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
        "of exchanges on a cluster: even (as many ranks on each rack, domains of one node filled; "
        "default), contiguous (racks filled too; default with --matrix), round-robin over nodes, "
        "or the GPU of each rank: 0,8,1,9"}},
      {"network",
       {"NAME",
        "of exchanges on a cluster: auto (default: exact, by the port bound where that is "
        "proven), flows or fast"}},
  };
  return all;
}

std::vector<std::string> operation_names() {
  std::vector<std::string> operations;
  for (const profile::PredictedOperation& op : profile::operations()) operations.push_back(op.name);
  return operations;
}

// For completion.
std::vector<std::string> parameter_words(const std::string& parameter) {
  if (parameter == "network") return words_in<network::method_names>();
  const std::vector<std::string> words = dispatch_choices(parameter);
  return words.empty() ? profile::choices_of(parameter) : words;
}

std::vector<Flag> flags() {
  std::vector<Flag> flags{{"profile", "NAME|FILE", scenario::option_named("profile").default_text,
                           "measured GPU and node; of software on one (a100-sxm-80gb-deepspeed, a "
                           "document of calibrate) times are multiplied by its factors, of "
                           "calibrate for train those of exchanges alone"}};
  const std::string names = fmt::format("{}", fmt::join(operation_names(), ", "));
  std::map<std::string, std::string> users;
  for (const profile::PredictedOperation& op : profile::operations()) {
    for (const std::string& name : parameters_of(op)) {
      if (name == "profile") continue;
      users[name] += (users[name].empty() ? "" : ", ") + op.name;
    }
  }
  flags.push_back(with_words({"op", "NAME", "", names}, operation_names));
  for (const auto& [name, ops] : users) {
    const auto help = parameter_help().find(name);
    if (help == parameter_help().end()) {
      const auto meaning = size_meaning().find(name);
      flags.push_back(
          {name, "N", "",
           "of " + ops + (meaning == size_meaning().end() ? "" : ": " + meaning->second)});
    } else {
      flags.push_back({name, help->second.value, "", help->second.text,
                       scenario::named_values(help->second.choices)});
    }
    flags.back().words = [parameter = name] { return parameter_words(parameter); };
  }
  flags.push_back(
      {"in", "FILE", "",
       "CSV of queries: columns op, profile and the parameters; note and id pass through; a row "
       "whose values have no answer says why (columns status and reason, if there is one), the "
       "others are answered (exit code 0; 1 if none is); text that is no number, negative ones, "
       "unknown names and missing cells are errors of the file"});
  flags.push_back(format_flag("table; csv for --in"));
  flags.push_back(out_flag());
  flags.push_back(config_flag());
  return flags;
}

}  // namespace

Command predict_command() {
  Command command = {
      "predict",
      "the time of one operation or exchange; CSV of queries in, CSV out",
      "--op NAME [parameters] | --in FILE",
      "moesim predict --profile h100-sxm --op all-to-all --gpus 8 --bytes 64MiB",
      flags(),
      false,
      0,
      run,
      "Of an exchange whose ranks end at different times, CSV and JSON have when each\n"
      "does, in us (rank_finish_us); where all end together, at time_us, it is empty in\n"
      "a CSV and left out of JSON.\n"};
  command.takes_profile_of_cluster = false;
  return command;
}

}  // namespace moesim::tool
