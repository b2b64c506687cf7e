#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "sim/base/file.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/base/formats/json_text.hpp"
#include "sim/base/shipped.hpp"
#include "sim/profile/profile.hpp"
#include "tools/moesim/base/command.hpp"
#include "tools/moesim/base/drawn_chart.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/base/process.hpp"
#include "tools/moesim/base/temporary_file.hpp"
#include "tools/moesim/profiling/profile_curves.hpp"
#include "tools/moesim/train/all_options.hpp"

namespace moesim::tool {
namespace {

namespace fs = std::filesystem;

std::string plotter() {
  if (const std::optional<std::string> found = find_shipped("plot/plot.py")) return *found;
  throw Error(fmt::format(
      "the plotter of moesim, plot/plot.py, is in none of {}: set MOESIM_PROFILES to the folder "
      "'profiles' of its sources, or of share/moesim where it is installed",
      fmt::join(shipped_places(), ", ")));
}

ExitCode run_plotter(const std::vector<std::string>& arguments, const std::string& out) {
  const std::string python = plotting_python();
  if (python.empty()) {
    throw Error(
        "charts need Python with matplotlib, and neither python3 nor /usr/bin/python3 has it: "
        "install the package python3-matplotlib, or set MOESIM_PYTHON to an interpreter that has "
        "it",
        ExitCode::missing_hardware);
  }
  std::vector<std::string> words{python, plotter()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const int code = draw_chart(std::move(words), out);
  if (code == 0) {
    note(fmt::format("chart: {}", out));
    return ExitCode::ok;
  }
  for (const ExitCode passed : {ExitCode::usage, ExitCode::missing_hardware}) {
    if (code == static_cast<int>(passed)) return passed;
  }
  if (code == 127) throw Error(fmt::format("cannot run {}", python));
  return ExitCode::failure;
}

bool is_page(const std::string& out) { return out.ends_with(".html"); }

std::string chart_path(const CommandLine& line, const std::string& input, bool of_rows = false) {
  std::string out = line.get("out", fs::path(input).stem().string() + ".png");
  if (is_page(out) && !of_rows) {
    throw UsageError(
        fmt::format("--out {}: only a sweep (a .csv file) has a page: .png, .pdf or .svg", out));
  }
  if (!out.ends_with(".png") && !out.ends_with(".pdf") && !out.ends_with(".svg") && !is_page(out)) {
    throw UsageError(fmt::format(
        "--out: {}: the name must end in .png, .pdf or .svg, of a sweep also .html", out));
  }
  check_writable(out);
  return out;
}

void refuse(const CommandLine& line, const char* flag, const char* reason) {
  if (line.has(flag)) throw UsageError(fmt::format("--{}: {}", flag, reason));
}

// Draws a chart of a sweep, whose option columns the plotter reads from a document.
ExitCode run_sweep_plotter(const CommandLine& line, std::vector<std::string> arguments,
                           const std::string& out) {
  const TemporaryFile options(all_options().dump());
  if (line.has("fits-only")) arguments.emplace_back("--fits-only");
  arguments.insert(arguments.end(), {"--options", options.path()});
  return run_plotter(arguments, out);
}

// Charts whose axes, rows and size can be chosen: rows.py reads their files.
constexpr const char* charts_of_rows[] = {"breakdown", "scaling", "pareto", "compare"};
constexpr const char* flags_of_rows[] = {"x", "y", "group", "facet", "where", "width", "font-size"};

bool is_of_rows(const CommandLine& line) {
  const std::string chart = line.get("chart");
  return line.has("x") || line.has("y") || is_page(line.get("out")) ||
         std::find(std::begin(charts_of_rows), std::end(charts_of_rows), chart) !=
             std::end(charts_of_rows);
}

ExitCode plot_rows(const CommandLine& line) {
  const bool page = is_page(line.get("out"));
  const std::string chart = line.get("chart");
  for (const char* flag : {"measured", "accuracy"}) {
    refuse(line, flag, "goes with the chart of speed and loss alone: leave --x, --y, --chart out");
  }
  if (page) refuse(line, "chart", "a page has a chart of its own, whose axes can be chosen");
  if (chart == "speed" || chart == "loss") {
    throw UsageError(
        fmt::format("--chart {}: has axes of its own: leave it out, or --x and --y", chart));
  }
  for (const char* flag : {"x", "y"}) {
    if (!chart.empty() && chart != "compare") {
      refuse(line, flag, "the axes of --chart breakdown, scaling and pareto are given");
    }
  }
  if (page || !chart.empty()) refuse(line, "facet", "goes with --x and --y alone");
  if (chart.empty() && !page && !line.has("x")) {
    throw UsageError("--y: give --x too, the column that it is drawn over, such as --x gpus");
  }
  const std::string out = chart_path(line, line.positionals[0], true);
  std::vector<std::string> arguments{page ? "report" : chart.empty() ? "axes" : chart};
  for (const std::string& file : line.positionals) {
    if (!file.ends_with(".csv")) {
      throw UsageError(fmt::format("{}: such a chart takes CSVs of sweeps alone", file));
    }
    read_file(file);
    arguments.push_back(file);
  }
  for (const char* flag : flags_of_rows) {
    if (line.has(flag)) arguments.push_back(fmt::format("--{}={}", flag, line.get(flag)));
  }
  if (line.has("title")) arguments.push_back("--title=" + line.get("title"));
  return run_sweep_plotter(line, std::move(arguments), out);
}

// Published accuracy over the speeds of a sweep.
ExitCode plot_accuracy(const CommandLine& line, const std::string& input) {
  refuse(line, "chart", "--accuracy is a chart of its own: leave one of them out");
  refuse(line, "measured", "measured speeds are drawn by --chart speed");
  const std::string study = find_document("studies", line.get("accuracy"));
  Document::load(study).validate(Document::load(find_document("schema", "accuracy.schema")));
  const std::string out = chart_path(line, input);
  return run_sweep_plotter(
      line, {"accuracy", input, "--study", study, "--title", line.get("title")}, out);
}

ExitCode plot_table(const CommandLine& line, const std::string& input) {
  read_file(input);  // absent or unreadable: said in the same words as everywhere
  if (is_of_rows(line)) return plot_rows(line);
  for (const char* flag : flags_of_rows) {
    if (flag == std::string_view("where") && !line.has("accuracy")) continue;
    refuse(line, flag, "goes with --x and --y, or --chart breakdown, scaling, pareto, compare");
  }
  if (line.positionals.size() > 1) {
    throw UsageError(fmt::format(
        "unexpected argument '{}': several sweeps are drawn with --x and --y, or --chart {}",
        line.positionals[1], fmt::join(charts_of_rows, ", ")));
  }
  if (line.has("accuracy")) return plot_accuracy(line, input);
  const std::string chart = line.get("chart", "speed");
  if (chart != "speed" && chart != "loss") {
    throw UsageError(
        fmt::format("--chart: '{}' is not known{}: choose speed, loss, {}", chart,
                    suggestion(chart, {"speed", "loss", "breakdown", "scaling", "pareto"}),
                    fmt::join(charts_of_rows, ", ")));
  }
  if (chart == "loss") refuse(line, "measured", "measured speeds are drawn by --chart speed");
  if (line.has("measured")) read_file(line.get("measured"));
  const std::string out = chart_path(line, input);
  // Without a word on the chart the losses of `route`, which have no speeds, are drawn alone.
  const char* const kind = chart == "loss" ? "loss" : line.has("chart") ? "speed" : "sweep";
  std::vector<std::string> arguments{kind, input};
  if (line.has("where")) arguments.push_back("--where=" + line.get("where"));
  for (const char* flag : {"measured", "title"}) {
    if (line.has(flag)) {
      arguments.insert(arguments.end(), {std::string("--") + flag, line.get(flag)});
    }
  }
  return run_sweep_plotter(line, std::move(arguments), out);
}

constexpr const char* what_it_takes =
    "a chart takes the CSV of a sweep (.csv), the JSON of a route, of validate or of explain with "
    "traces (.json), or a profile (a shipped name or .json)";

// JSON that has no chart, known by two of its keys: what it is, and what to do instead.
struct Undrawn {
  const char* key;
  const char* other_key;
  const char* what;
};

constexpr Undrawn undrawn[] = {
    {"step_ms", "step_ms",
     "the JSON of steps (simulate, sweep, train, recommend), which are drawn from a CSV: write "
     "them with --out FILE.csv"},
    {"simulated_ms", "measured_ms",
     "the JSON of moesim explain of a step's time alone, without parts to draw: give explain "
     "traces of torch.profiler"},
    {"op", "time_us",
     "the JSON of moesim predict, which has no chart: a profile has one of its curves: moesim plot "
     "h100-sxm"},
    {"pipeline_parallel", "data_parallel",
     "the JSON of moesim layout, which has no chart: layout --timeline FILE writes what Perfetto "
     "draws"},
    {"options", "columns", "the JSON of moesim options, which has no chart"},
};

// Throws UsageError for JSON of moesim that has no chart.
void refuse_undrawn(const std::string& input, const nlohmann::json& json) {
  const nlohmann::json& first = json.is_array() && !json.empty() ? json[0] : json;
  if (!first.is_object()) return;
  const auto known = std::find_if(std::begin(undrawn), std::end(undrawn), [&](const Undrawn& one) {
    return first.contains(one.key) && first.contains(one.other_key);
  });
  if (known != std::end(undrawn)) {
    throw UsageError(fmt::format("{}: this is {}", input, known->what));
  }
  const auto format_key = first.find("format");
  const bool has_format = format_key != first.end() && format_key->is_string();
  const std::string format = has_format ? format_key->get<std::string>() : "";
  if (format.starts_with("moesim ")) {
    throw UsageError(fmt::format("{}: this is a document '{}', which has no chart: {}", input,
                                 format, what_it_takes));
  }
}

// Throws UsageError for the rows of several scenarios of a route, which lack its detail.
void refuse_rows(const std::string& input, const nlohmann::json& json) {
  if (!json.is_array() || json.empty() || !json[0].is_object()) return;
  if (json[0].contains("router")) {
    throw UsageError(fmt::format(
        "{}: this is the JSON of moesim route of several scenarios ({}), and a chart shows one: "
        "route one value of each option",
        input, json.size()));
  }
}

// Throws UsageError for a file that is neither the JSON of a route nor a profile.
bool is_routing(const std::string& input) {
  std::error_code ignored;
  if (!fs::exists(input, ignored)) {
    if (input.find('/') == std::string::npos && input.find('.') == std::string::npos) return false;
    throw UsageError(fmt::format("{}: there is no such file: {}", input, what_it_takes));
  }
  if (!fs::is_regular_file(input, ignored) || !input.ends_with(".json")) {
    throw UsageError(fmt::format("{}: {}", input, what_it_takes));
  }
  const auto json = parse_json_or_null(read_file(input));
  if (json.is_null()) return false;  // the profile's reader says where it is malformed
  if (json.is_object() && json.contains("detail") && json["detail"].is_object() &&
      json["detail"].contains("replicas") && json["detail"].contains("layers")) {
    return true;
  }
  if (json.is_object() && json.contains("format") &&
      (json["format"] == "moesim-profile" || json["format"] == "moesim-software")) {
    return false;
  }
  refuse_undrawn(input, json);
  refuse_rows(input, json);
  throw UsageError(fmt::format(
      "{}: this is neither the JSON of moesim route (--format json --out FILE) nor a profile: {}",
      input, what_it_takes));
}

// The plotter's chart of what `moesim validate` or `explain` wrote as JSON; "" for any other file.
std::string chart_of_measured(const std::string& input) {
  if (!input.ends_with(".json") || !fs::is_regular_file(input)) return "";
  const auto json = nlohmann::json::parse(read_file(input), nullptr, false);
  if (!json.is_object()) return "";
  if (json.contains("verdicts") && json.contains("bands")) {
    return json["bands"].empty() ? "checks" : "bands";
  }
  return json.contains("parts_exposed") && json.contains("multiplier") ? "explained" : "";
}

ExitCode run(const CommandLine& line) {
  if (line.positionals.empty()) {
    throw UsageError(
        "plot what? Give the CSV of a sweep, the JSON of a route, of validate or of explain, or a "
        "profile: moesim plot sweep.csv");
  }
  const std::string& input = line.positionals[0];
  if (input.ends_with(".csv")) return plot_table(line, input);
  if (line.positionals.size() > 1) {
    throw UsageError(
        fmt::format("unexpected argument '{}': only sweeps (.csv files) are drawn together",
                    line.positionals[1]));
  }
  for (const char* flag : flags_of_rows) refuse(line, flag, "only of a sweep (a .csv file)");
  refuse(line, "measured", "only the chart of a sweep (a .csv file) has measured points");
  refuse(line, "chart", "only a sweep (a .csv file) has more than one chart");
  refuse(line, "accuracy", "only over the speeds of a sweep (a .csv file)");
  refuse(line, "fits-only", "only scenarios of a sweep (a .csv file) need memory");
  if (const std::string chart = chart_of_measured(input); !chart.empty()) {
    const std::string out = chart_path(line, input);
    return run_plotter({chart, input, "--title", line.get("title")}, out);
  }
  if (is_routing(input)) {
    const std::string out = chart_path(line, input);
    return run_plotter({"routing", input, "--title", line.get("title")}, out);
  }
  const profile::Profile profile = profile::Profile::load(input);
  const std::string out = chart_path(line, input);
  const TemporaryFile curves(curves_json(profile, line.get("title")));
  return run_plotter({"curves", curves.path()}, out);
}

// Files, and profiles by name.
std::vector<std::string> inputs() {
  std::vector<std::string> words = shipped_names("hardware");
  words.emplace_back("FILE");
  return words;
}

}  // namespace

Command plot_command() {
  return {
      "plot",
      "charts of a sweep, a routing, bands or a profile (needs matplotlib)",
      "SWEEP.csv... | RESULT.json | PROFILE [options]",
      "moesim plot a100-sxm-80gb --out a100.png",
      {{"out", "FILE", "the input's name with .png",
        "the chart: .png, .pdf (TrueType fonts) or .svg (text as text); of a sweep also .html, a "
        "page with axes to choose that needs no network (Python package plotly)"},
       {"chart",
        "NAME",
        "speed; of what route wrote, loss; of recommend with several --gpus, scaling",
        "of a sweep:",
        {{"speed",
          "speed and token loss over the capacity factor; more than 12 lines of several options "
          "get panels"},
         {"loss", "losses and padding alone, also of moesim route --out FILE.csv"},
         {"breakdown", "the parts of each step as bars"},
         {"scaling", "speed of all GPUs, and of one, over their number"},
         {"pareto", "speed over token loss, with a front for each model, machine, mode and k"},
         {"compare", "the second file over the first, with the band of the ratio"}}},
       {"x", "COLUMN", "none", "draw over any column of the CSV, such as gpus"},
       {"y", "COLUMN,...", "tokens_per_s_per_gpu", "with --x: the figures, a panel for each"},
       {"group", "COLUMN,...", "the options that differ", "a line for each of their values"},
       {"facet", "COLUMN", "none", "with --x: a panel for each of its values"},
       {"where", "CONDITION,...", "all rows", "rows to draw: mode=train,router=top1|top2,gpus>=16"},
       {"width", "LENGTH", "9in", "of the page with --x or one of the last four charts: 84mm"},
       {"font-size", "POINTS", "10", "the same: of its text"},
       {"measured", "FILE", "none",
        "CSV of measured points: router, capacity_factor, tokens_per_s_per_gpu, mode, source"},
       {"accuracy", "STUDY", "none",
        "published accuracy against the sweep's speeds: zeng2024-accuracy, or a file"},
       {"fits-only", "", "off",
        "of a sweep: leave out scenarios that do not fit in the memory of a GPU, which are "
        "otherwise pale and hollow"},
       {"title", "TEXT", "from the input", "the chart's title"}},
      false,
      32,
      run,
      "",
      false,
      inputs};
}

}  // namespace moesim::tool
