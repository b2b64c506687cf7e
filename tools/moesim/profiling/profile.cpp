#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

#include "kernels/measure/sessions/session.hpp"
#include "sim/base/text.hpp"
#include "sim/profile/profile.hpp"
#include "sim/report/formats.hpp"
#include "tools/moesim/base/command.hpp"
#include "tools/moesim/base/commit.hpp"
#include "tools/moesim/base/interrupt.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/base/progress.hpp"

namespace moesim::tool {
namespace {

namespace measure = kernels::measure;

// GPUs of a plan that is only shown, where there may be none.
constexpr int shown_gpus = 8;
constexpr int most_gpus = 1024;

// The parts between separators that are not empty.
std::vector<std::string> words_of(const std::string& text, char separator) {
  std::vector<std::string> words;
  for (const std::string_view part : split(text, separator)) {
    if (!part.empty()) words.emplace_back(part);
  }
  return words;
}

std::string duration(double seconds) {
  if (seconds < 100) return fmt::format("{:.0f} s", seconds);
  return fmt::format("{:.0f} min", seconds / 60);
}

int whole(const CommandLine& line, const char* flag, int lowest, int fallback) {
  if (!line.has(flag)) return fallback;
  return static_cast<int>(parse_whole(std::string("--") + flag, line.get(flag), lowest, most_gpus));
}

std::optional<int> optional_whole(const CommandLine& line, const char* flag, int lowest) {
  if (!line.has(flag)) return std::nullopt;
  return whole(line, flag, lowest, 0);
}

double chosen_seconds(const CommandLine& line, const char* flag, double fallback) {
  if (!line.has(flag)) return fallback;
  return static_cast<double>(
      parse_whole(std::string("--") + flag, line.get(flag), 1, std::int64_t{7} * 24 * 3600));
}

std::uint64_t chosen_seed(const CommandLine& line) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  if (!line.has("seed")) return 1;
  return static_cast<std::uint64_t>(parse_whole("--seed", line.get("seed"), 0, most));
}

measure::Selection selection(const CommandLine& line) {
  measure::Selection chosen;
  chosen.suites = words_of(line.get("suite"), ',');
  chosen.only = words_of(line.get("only"), ' ');
  for (const std::string& name : chosen.suites) measure::find_suite(name);
  return chosen;
}

// Whether several GPUs would exchange.
bool exchanges(const measure::Selection& chosen) {
  const std::vector<std::string>& names = chosen.suites;
  for (const measure::Suite& suite : measure::all_suites()) {
    if (!names.empty() && std::find(names.begin(), names.end(), suite.name) == names.end())
      continue;
    const std::vector<measure::PointSpec> points = suite.points(2);
    if (std::any_of(points.begin(), points.end(),
                    [](const measure::PointSpec& point) { return point.collective; })) {
      return true;
    }
  }
  return false;
}

void list_suites() {
  std::vector<std::vector<std::string>> lines{{"suite", "points", "GPUs", "measures"}};
  for (const measure::Suite& suite : measure::all_suites()) {
    const std::size_t points = suite.points(std::max(suite.fewest_gpus, shown_gpus)).size();
    lines.push_back({suite.name, std::to_string(points),
                     suite.fewest_gpus == 1 ? "1" : fmt::format("{}+", suite.fewest_gpus),
                     suite.what});
  }
  std::string text = report::align(lines, {false, true, true, false});
  text += "\nNot measured:\n";
  for (const measure::Missing& gap : measure::always_missing()) {
    text += fmt::format("  {}: {}; {}\n", gap.suite, gap.reason, gap.hint);
  }
  Output("").write(text);
}

// Rates by which times are estimated before a device was seen: the base profile's device.
measure::Rates rates_of(const std::string& base) {
  const profile::Device device = profile::Profile::load(base).device();
  measure::Rates rates;
  rates.peak_flops = device.peak_bf16_flops;
  rates.memory_bytes_per_second = device.hbm_bandwidth.bytes_per_second;
  rates.link_bytes_per_second = device.nvlink_bandwidth.bytes_per_second;
  rates.l2_bytes = static_cast<double>(device.l2_bytes.count);
  return rates;
}

void show_plan(const CommandLine& line) {
  const std::string base = line.get("base", "h200-sxm");
  measure::Selection chosen = selection(line);
  chosen.gpus = whole(line, "gpus", 1, shown_gpus);
  const measure::Plan plan = measure::make_plan(chosen, chosen_seed(line), rates_of(base));
  std::vector<std::vector<std::string>> lines{{"suite", "about", "point"}};
  for (const measure::Planned& planned : plan.points) {
    lines.push_back(
        {planned.suite, fmt::format("{:.2f} s", planned.seconds), planned.spec.label()});
  }
  Output("").write(report::align(lines, {false, true, false}));
  for (const measure::Missing& gap : plan.missing) {
    note(fmt::format("{} left out: {}; {}", gap.suite, gap.reason, gap.hint));
  }
  note(fmt::format("{} points, about {} on {} GPU(s) like those of {}", plan.points.size(),
                   duration(plan.seconds()), chosen.gpus, base));
}

// "12 of 306 points, gemm m=16 ..., about 40 s left".
std::string progress_text(const measure::RunProgress& progress) {
  std::string text = fmt::format("{} of {} points", progress.done, progress.total);
  if (progress.resumed > 0) text += fmt::format(" ({} resumed)", progress.resumed);
  if (progress.label.empty()) return text;
  return text + fmt::format(", {}, about {} left", progress.label, duration(progress.seconds_left));
}

std::vector<std::string> typed(const CommandLine& line) {
  std::vector<std::string> words;
  for (const auto& [name, value] : line.values) {
    words.push_back("--" + name);
    if (!value.empty()) words.push_back(value);
  }
  return words;
}

measure::SessionOptions session_options(const CommandLine& line) {
  measure::SessionOptions options;
  options.out = line.get("out", "node.json");
  options.name = line.get("name");
  options.base = line.get("base");
  options.selection = selection(line);
  options.gpus = optional_whole(line, "gpus", 1);
  options.seed = chosen_seed(line);
  options.timeout_s = chosen_seconds(line, "timeout", 0);
  options.stall_s = chosen_seconds(line, "stall", options.stall_s);
  options.resume = line.has("resume");
  measure::LaunchFlags flags;
  flags.rank = optional_whole(line, "rank", 0);
  flags.ranks = optional_whole(line, "ranks", 1);
  flags.local_rank = optional_whole(line, "local-rank", 0);
  if (line.has("address")) flags.address = line.get("address");
  options.launch = measure::detect_launch(flags, measure::process_environment);
  if (options.launch.ranks > 1 && options.gpus) {
    throw UsageError("--gpus: ranks of a launcher drive one GPU each: choose their number there");
  }
  options.tool_version = MOESIM_VERSION;
  options.commit = source_commit();
  options.arguments = typed(line);
  if (!options.base.empty()) profile::Profile::load(options.base);
  return options;
}

// What the user wants to know at the end, and the exit code that says it to a script.
ExitCode conclude(const measure::SessionReport& report) {
  for (const std::string& reason : report.run.voided) note("void: " + reason);
  for (const measure::Missing& gap : report.missing) {
    note(fmt::format("missing: {}: {}; {}", gap.suite, gap.reason, gap.hint));
  }
  if (report.profile_path.empty()) {
    note("no point was measured: no profile is written");
  } else {
    note(fmt::format("{} points ({} new) in {}, all samples in {}", report.points,
                     report.run.measured, report.profile_path, report.raw_path));
    note(fmt::format("next: moesim simulate --profile {}", report.profile_path));
  }
  if (report.run.end == measure::RunEnd::interrupted) return ExitCode::interrupted;
  if (report.run.end == measure::RunEnd::timeout) return ExitCode::timeout;
  if (!report.run.voided.empty()) return ExitCode::verification_failed;
  return report.profile_path.empty() ? ExitCode::failure : ExitCode::ok;
}

ExitCode run(const CommandLine& line) {
  if (line.has("list")) {
    list_suites();
    return ExitCode::ok;
  }
  if (line.has("dry-run")) {
    show_plan(line);
    return ExitCode::ok;
  }
  measure::SessionOptions options = session_options(line);
  if (options.launch.ranks == 1 && exchanges(options.selection)) {
    measure::load_kernels_early(
        options.gpus.value_or(measure::visible_gpus(measure::process_environment)));
  }
  const std::unique_ptr<measure::Machine> machine = measure::open_machine();
  const InterruptWatch watch;
  options.interrupted = &watch.flag();
  ProgressLine line_of_points("points");
  options.on_progress = [&line_of_points](const measure::RunProgress& now) {
    const std::string text = progress_text(now);
    now.label.empty() ? line_of_points.finish(text) : line_of_points.show(text);
  };
  options.on_note = [](const std::string& text) { note(text); };
  // The rank hangs in a call that never returns: there is nothing to unwind to.
  options.give_up = [](const std::string& where, ExitCode code) {
    note(fmt::format("moesim: error: {}; finished points are saved, --resume measures the rest",
                     where));
    ::_exit(static_cast<int>(code));
  };
  const measure::SessionReport report = measure::profile_node(*machine, options);
  return options.launch.rank == 0 ? conclude(report) : ExitCode::ok;
}

std::vector<std::string> suite_names() {
  std::vector<std::string> names;
  for (const measure::Suite& suite : measure::all_suites()) names.push_back(suite.name);
  return names;
}

}  // namespace

Command profile_command() {
  return {
      "profile",
      "measure this node's GPUs and write a complete profile",
      "[options]",
      "moesim profile --dry-run --suite gemm --only m=1024",
      {{"out", "FILE", "node.json", "the profile; samples go beside it, to FILE.raw.json"},
       {"list", "", "", "the suites, what they measure and what is not measured"},
       {"dry-run", "", "", "the points in order with the time each takes; no GPU needed"},
       with_words({"suite", "LIST", "all", "suites, separated by commas"}, suite_names),
       {"only", "WORDS", "all", "points whose label has all these words: \"m=16 n=4096\""},
       {"gpus", "N", "all of this node", "GPUs that one process drives"},
       {"timeout", "SECONDS", "none", "begin no point that would end later; hung ranks end too"},
       {"stall", "SECONDS", "180", "a point without progress for so long ends the run"},
       {"resume", "", "", "keep the points of an earlier run to the same --out"},
       {"name", "TEXT", "from the device", "the profile's name"},
       {"base", "PROFILE", "the same or nearest device",
        "shipped profile for what is not measured"},
       {"seed", "N", "1", "of inputs and of the order of the points"},
       {"rank", "N", "from mpirun, srun or torchrun", "this process among the ranks"},
       {"ranks", "N", "from the launcher", "how many processes, one GPU each"},
       {"local-rank", "N", "from the launcher", "which GPU of this node"},
       {"address", "HOST:PORT", "from the launcher", "where rank 0 listens"}},
      false,
      0,
      run};
}

}  // namespace moesim::tool
