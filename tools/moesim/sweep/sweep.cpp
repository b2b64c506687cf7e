#include "sim/study/sweep/sweep.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "sim/base/file.hpp"
#include "sim/report/finished_rows.hpp"
#include "sim/report/formats.hpp"
#include "sim/report/summary.hpp"
#include "sim/step/memory.hpp"
#include "sim/study/sweep/baseline.hpp"
#include "sim/study/sweep/grid.hpp"
#include "sim/study/sweep/journal.hpp"
#include "tools/moesim/command.hpp"
#include "tools/moesim/commit.hpp"
#include "tools/moesim/config.hpp"
#include "tools/moesim/evaluate_scenario.hpp"
#include "tools/moesim/interrupt.hpp"
#include "tools/moesim/kept_result.hpp"
#include "tools/moesim/output.hpp"
#include "tools/moesim/progress.hpp"
#include "tools/moesim/sweep/shared_sweep.hpp"
#include "tools/moesim/sweep/sweep_parts.hpp"

namespace moesim::tool {
namespace {

// Rows are to come, and to be kept if the sweep is stopped, every few seconds.
constexpr double seconds_of_pass = 5;

std::string rendered(const std::vector<study::Row>& rows, report::Format format) {
  if (format == report::Format::table) return report::sweep_summary(rows);
  const std::vector<std::string> columns = study::names_of(study::result_columns());
  return format == report::Format::csv ? report::to_csv(columns, rows)
                                       : report::to_json_text(columns, rows);
}

std::vector<study::Row> finished_rows(const study::SweepResult& result) {
  std::vector<study::Row> rows;
  for (const auto& row : result.rows) {
    if (row) rows.push_back(*row);
  }
  return rows;
}

// As far as they could be filled in.
std::vector<const scenario::Scenario*> scenarios_of(const std::vector<study::SweepPoint>& points) {
  std::vector<const scenario::Scenario*> scenarios;
  for (const study::SweepPoint& point : points) {
    if (point.scenario) scenarios.push_back(&*point.scenario);
  }
  return scenarios;
}

bool exists(const std::string& path) { return !path.empty() && ::access(path.c_str(), F_OK) == 0; }

bool is_refused(const study::Row& row) { return row[0] != Cell("ok"); }

// How many rows are refused; says so.
std::size_t warn_of_refused(const std::vector<study::Row>& rows) {
  const auto refused =
      static_cast<std::size_t>(std::count_if(rows.begin(), rows.end(), is_refused));
  if (refused == 0) return 0;
  const study::Row& first = *std::find_if(rows.begin(), rows.end(), is_refused);
  note(
      fmt::format("warning: {} of {} scenarios were refused (columns status and reason); the "
                  "first: {}",
                  refused, rows.size(), report::text_of(first[1])));
  return refused;
}

// Says how many rows need more memory than a GPU has: the fastest may be among them.
void warn_of_unfit(const std::vector<study::Row>& rows) {
  const std::size_t fits = study::column_index("fits_memory");
  const auto unfit = std::count_if(rows.begin(), rows.end(),
                                   [&](const study::Row& row) { return row[fits] == Cell(false); });
  if (unfit == 0) return;
  const std::size_t profile = study::column_index("profile");
  std::set<std::string> profiles;  // whose memory is too small
  for (const study::Row& row : rows) {
    if (row[fits] == Cell(false)) profiles.insert(report::text_of(row[profile]));
  }
  note(
      fmt::format("warning: {} of {} scenarios do not fit in the memory of a GPU (that of the "
                  "profile{} {}; column fits_memory); charts draw them pale and hollow, or with "
                  "--fits-only not at all",
                  unfit, rows.size(), profiles.size() == 1 ? "" : "s", fmt::join(profiles, ", ")));
}

void note_high_mfu(const std::vector<study::Row>& rows) {
  const std::size_t mfu = study::column_index("mfu");
  const auto high = std::count_if(rows.begin(), rows.end(), [&](const study::Row& row) {
    return !is_absent(row[mfu]) && number_in(row[mfu]) > 1;
  });
  if (high == 0) return;
  note(fmt::format("note: {} of {} scenarios have an mfu above 1, which is no error: {}", high,
                   rows.size(), mfu_counts_dropped));
}

// Routers that choose so many experts a token, by their rows; not those of several k, which were
// asked for, nor soft, which mixes all tokens.
std::map<std::string, std::vector<std::string>> routers_by_k(const std::vector<study::Row>& rows) {
  const std::size_t router = study::column_index("router");
  const std::size_t k = study::column_index("top_k");
  std::map<std::string, std::set<std::string>> ks;
  for (const study::Row& row : rows) {
    const std::string text = report::text_of(row[k]);
    const std::string name = report::text_of(row[router]);
    if (!is_refused(row) && !text.empty() && name != "soft") ks[name].insert(text);
  }
  std::map<std::string, std::vector<std::string>> routers;
  for (const auto& [name, its] : ks) {
    if (its.size() == 1) routers[*its.begin()].push_back(name);
  }
  return routers;
}

// Says which routers have another k than most, where their names do not say it (top1 does): their
// loss is a share of less, or more, so that losses do not compare. Charts mark the same ones
// (differing_k() of tools/plot/chart_data.py).
void warn_of_differing_k(const std::vector<study::Row>& rows) {
  const auto routers = routers_by_k(rows);
  if (routers.size() < 2) return;
  std::size_t most = 0;
  for (const auto& [k, names] : routers) most = std::max(most, names.size());
  std::vector<std::string> usual;  // more than one: none is
  for (const auto& [k, names] : routers) {
    if (names.size() == most) usual.push_back(k);
  }
  std::string others;
  for (const auto& [k, names] : routers) {
    if (usual == std::vector{k}) continue;
    for (const std::string& name : names) {
      const bool is_named = name.substr(0, name.find('+')) == "top" + k;
      if (!is_named) others += fmt::format("{}{} (k = {})", others.empty() ? "" : ", ", name, k);
    }
  }
  if (others.empty()) return;
  note(fmt::format(
      "warning: not of the same k as the other routers{}: {}; token loss is a "
      "share of the weight of a token's own k experts, so do not compare it between them",
      usual.size() == 1 ? fmt::format(" (k = {})", usual.front()) : "", others));
}

// Says where several numbers of GPUs have expert groups of one size that nobody chose: the speed of
// a GPU then hardly changes, as more GPUs are more such groups.
void note_usual_groups(const scenario::OptionValues& typed,
                       const std::vector<const scenario::Scenario*>& scenarios) {
  if (!typed.contains("gpus") || typed.contains("expert-parallel")) return;
  std::map<int, std::set<int>> gpus_of_size;
  std::set<int> larger;
  for (const scenario::Scenario* one : scenarios) {
    if (!one->has_moe()) continue;
    gpus_of_size[one->expert_parallel].insert(one->gpus);
    const bool divides = one->gpus > one->expert_parallel && one->experts % one->gpus == 0;
    if (divides) larger.insert(one->gpus);
  }
  for (const auto& [size, gpus] : gpus_of_size) {
    if (gpus.size() < 2) continue;
    note(fmt::format(
        "note: --expert-parallel {} on {} GPUs alike, the default: {} GPUs are {} "
        "groups of {}{}",
        size, fmt::join(gpus, ", "), *gpus.rbegin(), *gpus.rbegin() / size, size,
        larger.empty()
            ? ""
            : fmt::format("; for larger groups: --expert-parallel {}", fmt::join(larger, ","))));
  }
}

// Says, before anything is simulated, how many scenarios cannot fit whatever their routing is, and
// what would make the nearest of them fit if its experts are balanced.
void warn_beforehand(const std::vector<study::SweepPoint>& points) {
  const scenario::Scenario* nearest = nullptr;
  Bytes least;
  std::size_t too_large = 0;
  std::size_t known = 0;
  for (const study::SweepPoint& point : points) {
    if (!point.scenario || !point.refusal.empty() || point.repeats) continue;
    const scenario::Scenario* const scenario = &*point.scenario;
    ++known;
    const Bytes need = step::memory_footprint(*scenario, 0, {}).total();
    if (need <= scenario->profile->device().hbm_bytes) continue;
    ++too_large;
    if (nearest != nullptr && least <= need) continue;
    nearest = scenario;
    least = need;
  }
  if (nearest == nullptr) return;
  study::Outcome outcome;
  const std::int64_t rows =
      nearest->has_moe() ? nearest->tokens_per_gpu * nearest->router.choices() : 0;
  outcome.rows = {rows, rows, rows, 0};
  outcome.memory_gib = step::memory_footprint(*nearest, 0, outcome.rows).total().gib();
  note(fmt::format(
      "warning: {} of {} scenarios cannot fit: at least {:.1f} GiB per GPU, {:.0f} GiB on {}; the "
      "smallest of them: {}",
      too_large, known, least.gib(), nearest->profile->device().hbm_bytes.gib(),
      nearest->profile_name, memory_hint_text(*nearest, outcome)));
}

// Those of the rows of a finished sweep that are compared with the baseline of this one. Throws
// UsageError where there is one, and the rows are compared with none or another.
std::map<std::size_t, study::Row> rows_of_baseline(
    const std::string& path, const std::string& baseline,
    const std::vector<study::SweepPoint>& points,
    const std::vector<std::optional<std::size_t>>& baseline_of,
    const std::map<std::size_t, study::Row>& rows) {
  study::ComparedRows compared = study::compared_rows(points, baseline_of, rows);
  if (!compared.differs && !compared.alike.empty()) return std::move(compared.alike);
  std::string why = "compared with another baseline than " + baseline;
  std::string instead = "give the --baseline that it was made with";
  if (!compared.differs) {
    why = "not beside the rows that they are compared with";
    instead = "sweep a grid with those rows";
  } else if (compared.has_none) {
    why = "compared with no baseline";
    instead = "leave --baseline out too";
  }
  throw UsageError(fmt::format(
      "--resume: {} is finished, and its rows are {}: {}, choose another --out, or leave "
      "--resume out to replace it",
      path, why, instead));
}

// Rows of a finished sweep in the file that --resume names, where no interrupted one is. Throws
// UsageError if none of its rows is of this sweep.
std::map<std::size_t, study::Row> rows_of_finished(
    const std::string& path, const std::vector<study::SweepPoint>& points,
    const std::string& baseline, const std::vector<std::optional<std::size_t>>& baseline_of,
    report::Format format, std::size_t total) {
  if (format != report::Format::csv) {
    throw UsageError(
        fmt::format("--resume: {} exists, and no interrupted sweep beside it; rows are read back "
                    "from CSV only: "
                    "choose another --out, or leave --resume out to replace it",
                    path));
  }
  report::FinishedRows finished = report::finished_rows(path, points);
  if (finished.rows.empty()) {
    throw UsageError(fmt::format(
        "--resume: {} is finished, and none of its {} scenarios has these options: choose another "
        "--out, or leave --resume out to replace it",
        path, finished.in_file));
  }
  if (!baseline.empty()) {
    finished.rows = rows_of_baseline(path, baseline, points, baseline_of, finished.rows);
  } else if (finished.rows.size() < total) {  // the new rows are compared with none
    for (auto& [index, row] : finished.rows) row = study::without_baseline(std::move(row));
  }
  if (finished.rows.size() < total || finished.in_file > total) {
    note(fmt::format(
        "--resume: {} is finished: {} of these {} scenarios are taken from it by their options "
        "(without --resume all are computed anew, by the documents and program of today)",
        path, finished.rows.size(), total));
  }
  return std::move(finished.rows);
}

ExitCode stopped(const Output& out, const std::vector<study::Row>& rows, std::size_t total,
                 const std::string& journal, report::Format format) {
  if (rows.empty()) {
    if (!journal.empty()) ::unlink(journal.c_str());
    note(fmt::format("interrupted before the first of {} scenarios was finished: nothing written",
                     total));
    return ExitCode::interrupted;
  }
  if (exists(out.path()) && std::all_of(rows.begin(), rows.end(), is_refused)) {
    note(fmt::format("interrupted: {} of {} scenarios, all refused: {} is left as it was{}",
                     rows.size(), total, out.path(),
                     journal.empty() ? "" : "; the same command with --resume continues"));
    return ExitCode::interrupted;
  }
  write_keeping(out, rendered(rows, format), format, sweep_option_columns());
  note(journal.empty()
           ? fmt::format("interrupted: {} of {} scenarios written; with --out FILE an interrupted "
                         "sweep can be resumed",
                         rows.size(), total)
           : fmt::format("interrupted: {} of {} scenarios saved in {}; the same command with "
                         "--resume continues",
                         rows.size(), total, out.path()));
  return ExitCode::interrupted;
}

// What the program and the documents were, beside the points: parts and journals of other ones do
// not fit.
std::string build_name() { return fmt::format("{} {}", MOESIM_VERSION, source_commit()); }

void check_part(const CommandLine& line, report::Format format, const std::string& what) {
  if (format == report::Format::csv) return;
  throw UsageError(fmt::format("{} writes a part of a CSV: {}", what,
                               line.has("format") ? "leave --format out" : "give --out FILE.csv"));
}

// --resume on the first run.
void note_fresh_start(const Output& out) {
  note(fmt::format("--resume: no interrupted sweep beside {}: starting from the first scenario",
                   out.path()));
}

// One shard of the sweep, with the names of its rows.
ExitCode run_shard(const CommandLine& line, const std::vector<study::SweepPoint>& points,
                   study::SweepSettings settings, const Output& out) {
  const Shard shard = parse_shard(line.get("shard"));
  const RowNames names(points, settings.fingerprint);
  const std::vector<std::size_t> own = rows_of(shard, chunks_of(points));
  std::vector<study::SweepPoint> selected;
  for (const std::size_t point : own) selected.push_back(points[point]);
  settings.fingerprint += fmt::format(" shard {}/{}", shard.number, shard.count);
  if (settings.resume && !exists(settings.journal) && exists(out.path())) {
    if (names.rows_in(out.path()) == own.size()) {
      note(fmt::format("{}: already complete, {} scenarios", out.path(), own.size()));
      return ExitCode::ok;
    }
    throw UsageError(fmt::format(
        "--resume: {} is another shard of this sweep: choose another --out", out.path()));
  }
  if (settings.resume && !exists(settings.journal)) note_fresh_start(out);
  const InterruptWatch watch;
  settings.stop = &watch.flag();
  ProgressLine progress("scenarios");
  settings.progress = [&](const study::SweepProgress& state) { progress.show(state); };
  const study::SweepResult result = study::sweep(selected, settings);
  progress.finish();
  const std::vector<study::Row> rows = finished_rows(result);
  if (!result.complete()) {
    note(fmt::format("interrupted: {} of {} scenarios{}", rows.size(), own.size(),
                     settings.journal.empty() ? "" : "; the same command with --resume continues"));
    return ExitCode::interrupted;
  }
  warn_of_refused(rows);
  write_keeping(out, names.csv(own, rows), report::Format::csv, sweep_option_columns());
  if (!settings.journal.empty()) ::unlink(settings.journal.c_str());
  note(fmt::format("shard {} of {}: {} of {} scenarios{}{}", shard.number, shard.count, rows.size(),
                   names.total(), line.has("out") ? ": " : "", out.path()));
  return ExitCode::ok;
}

// With the other processes of an mpirun or srun.
ExitCode run_with_others(const CommandLine& line, const std::vector<study::SweepPoint>& points,
                         const study::SweepSettings& given, const Launched& process) {
  if (!line.has("out")) {
    throw UsageError(fmt::format(
        "--out is missing: {} processes were started together and share one sweep (see --shard for "
        "parts of your own)",
        process.size));
  }
  const InterruptWatch watch;
  study::SweepSettings settings;
  settings.jobs = given.jobs;
  settings.seconds_of_pass = seconds_of_pass;
  settings.stop = &watch.flag();
  const RowNames names(points, given.fingerprint);
  return run_shared({points, names, line.get("out"), given.resume, settings}, process);
}

ExitCode run(const CommandLine& line) {
  const bool to_file = line.has("out");
  const report::Format format =
      chosen_format(line, to_file ? report::Format::csv : report::Format::table);
  study::SweepSettings settings;
  settings.jobs = chosen_jobs(line);
  settings.seconds_of_pass = seconds_of_pass;
  settings.resume = line.has("resume");
  if (settings.resume && !to_file) {
    throw UsageError("--resume: give the --out FILE of the interrupted sweep");
  }
  scenario::DocumentCache documents;
  std::vector<study::SweepPoint> points = study::plan(study::grid(line.scenario()), documents);
  study::mark_repeats(points);
  const std::vector<const scenario::Scenario*> scenarios = scenarios_of(points);
  note_idle_options(line.asked_scenario(), scenarios, scenario::Asker::step);
  note_small_capacity(line.scenario(), scenarios);
  note_trained_routers(scenarios);
  {
    const EachNoteOnce once;
    for (const scenario::Scenario* one : scenarios) note_left_out(*one->model, one->model_name);
  }
  const std::string baseline = line.get("baseline");
  if (!baseline.empty()) settings.baseline_of = study::baselines(points, baseline);
  note_scores(line.scenario(), scenarios);
  note_usual_groups(line.scenario(), scenarios);
  const Output out(line.get("out"));
  settings.journal = study::journal_path(out.path());
  settings.fingerprint = study::fingerprint(points, fmt::format("{} {}", build_name(), baseline));
  const auto total = static_cast<std::size_t>(
      std::count_if(points.begin(), points.end(), [](const auto& each) { return !each.repeats; }));
  const std::optional<Launched> process = launched();
  if ((line.has("shard") || process) && !baseline.empty()) {
    throw UsageError(
        "--baseline: a part of a sweep need not have the row to compare with: run the sweep as one "
        "process, or leave --baseline out");
  }
  if (line.has("shard")) {
    check_part(line, format, "--shard");
    return run_shard(line, points, settings, out);
  }
  if (process) check_part(line, format, "a sweep of several processes");
  const bool is_continued = process && exists(out.path() + ".parts");
  const bool replaces = exists(out.path());
  const bool interrupted = exists(settings.journal);
  if (settings.resume && !interrupted && replaces && !is_continued) {
    settings.known =
        rows_of_finished(out.path(), points, baseline, settings.baseline_of, format, total);
    if (settings.known.size() == total) {
      note(fmt::format(
          "{}: already complete, {} scenarios (found by their options; without --resume all are "
          "computed anew, by the documents and program of today)",
          out.path(), total));
      return ExitCode::ok;
    }
  } else if (settings.resume && !interrupted && !process) {
    note_fresh_start(out);
  }
  if (process) return run_with_others(line, points, settings, *process);

  warn_beforehand(points);
  const InterruptWatch watch;
  settings.stop = &watch.flag();
  ProgressLine progress("scenarios");
  settings.progress = [&](const study::SweepProgress& state) { progress.show(state); };
  const study::SweepResult result = study::sweep(points, settings);
  progress.finish();

  const std::vector<study::Row> rows = finished_rows(result);
  if (!result.complete()) return stopped(out, rows, result.total, settings.journal, format);
  const std::size_t refused = warn_of_refused(rows);
  warn_of_unfit(rows);
  note_high_mfu(rows);
  warn_of_differing_k(rows);
  // Nothing to replace an earlier result by.
  const bool keep = replaces && refused == rows.size();
  if (keep) {
    note(fmt::format("{}: left as it was, as every scenario was refused", out.path()));
  } else {
    write_keeping(out, rendered(rows, format), format, sweep_option_columns());
  }
  if (!settings.journal.empty()) ::unlink(settings.journal.c_str());
  if (points.size() > rows.size()) {
    note(fmt::format(
        "{} of {} combinations left out: they differ from another only in what their router, "
        "or mode, has no use for",
        points.size() - rows.size(), points.size()));
  }
  if (to_file && !keep)
    note(fmt::format("{} scenario{}: {}", rows.size(), rows.size() == 1 ? "" : "s", out.path()));
  // A row that cannot be is a row; a sweep of nothing else has failed.
  return refused == rows.size() ? ExitCode::failure : ExitCode::ok;
}

}  // namespace

Command sweep_command() {
  return {"sweep",
          "a grid of scenarios to a CSV, in parallel, resumable",
          "[options]",
          "moesim sweep --router top1,top1+ir --capacity-factor 0.5:2:0.5 --out sweep.csv",
          {format_flag("table; with --out csv, or json by its name"),
           out_flag(),
           jobs_flag(),
           config_flag(),
           from_flag(),
           {"baseline", "OPTION=VALUE,...", "none",
            "compare the speed of each row with the row that has these options and else its own: "
            "columns speed_over_baseline, its p05 and p95, within_noise; what both share cancels"},
           {"shard", "I/N", "the whole",
            "the I-th of N parts, for 'moesim merge': sim/study/sweep/README.md"},
           {"resume", "", "off",
            "continue the interrupted sweep that --out names, or take the rows that a finished one "
            "shares"}},
          true,
          0,
          run,
          "Every scenario option also takes a list a,b,c; numbers also take lo:hi:step.\n"};
}

}  // namespace moesim::tool
