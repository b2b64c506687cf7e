#include "sim/study/sweep/sweep.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>

#include "sim/base/error.hpp"
#include "sim/report/formats.hpp"
#include "sim/report/summary.hpp"
#include "tools/moesim/base/command.hpp"
#include "tools/moesim/base/interrupt.hpp"
#include "tools/moesim/base/kept_result.hpp"
#include "tools/moesim/base/progress.hpp"
#include "tools/moesim/command_line/config.hpp"
#include "tools/moesim/sweep/shared_sweep.hpp"
#include "tools/moesim/sweep/sweep_parts.hpp"
#include "tools/moesim/sweep/sweep_request.hpp"
#include "tools/moesim/sweep/sweep_resume.hpp"
#include "tools/moesim/sweep/sweep_warnings.hpp"
#include "tools/moesim/train/layout_scenario.hpp"

namespace moesim::tool {
namespace {

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

// The rows of points, with progress on stderr; not all of them after an interrupt.
study::SweepResult evaluated(const std::vector<study::SweepPoint>& points,
                             study::SweepSettings settings, const InterruptWatch& watch) {
  settings.stop = &watch.flag();
  ProgressLine progress("scenarios");
  settings.progress = [&](const study::SweepProgress& state) { progress.show(state); };
  study::SweepResult result = study::sweep(points, settings);
  progress.finish();
  return result;
}

// Keeps what an interrupted sweep has so far.
ExitCode stopped(const SweepRequest& request, const std::vector<study::Row>& rows) {
  const Output& out = request.out;
  const std::string& journal = request.settings.journal;
  if (rows.empty()) {
    if (!journal.empty()) ::unlink(journal.c_str());
    note(fmt::format("interrupted before the first of {} scenarios was finished: nothing written",
                     request.total));
    return ExitCode::interrupted;
  }
  if (exists(out.path()) && std::all_of(rows.begin(), rows.end(), is_refused)) {
    note(fmt::format("interrupted: {} of {} scenarios, all refused: {} is left as it was{}",
                     rows.size(), request.total, out.path(),
                     journal.empty() ? "" : "; the same command with --resume continues"));
    return ExitCode::interrupted;
  }
  write_keeping(out, rendered(rows, request.format), request.format, sweep_option_columns());
  note(journal.empty()
           ? fmt::format("interrupted: {} of {} scenarios written; with --out FILE an interrupted "
                         "sweep can be resumed",
                         rows.size(), request.total)
           : fmt::format("interrupted: {} of {} scenarios saved in {}; the same command with "
                         "--resume continues",
                         rows.size(), request.total, out.path()));
  return ExitCode::interrupted;
}

// A part of a sweep is a CSV, and compares no rows: the one to compare with may be in another part.
void check_parts(const SweepRequest& request, bool of_several) {
  const bool is_shard = request.line.has("shard");
  if (!is_shard && !of_several) return;
  if (!request.baseline.empty()) {
    throw UsageError(
        "--baseline: a part of a sweep need not have the row to compare with: run the sweep as one "
        "process, or leave --baseline out");
  }
  if (request.format == report::Format::csv) return;
  throw UsageError(fmt::format(
      "{} writes a part of a CSV: {}", is_shard ? "--shard" : "a sweep of several processes",
      request.line.has("format") ? "leave --format out" : "give --out FILE.csv"));
}

// One shard of the sweep, with the names of its rows.
ExitCode run_shard(const SweepRequest& request) {
  const Output& out = request.out;
  study::SweepSettings settings = request.settings;
  const Shard shard = parse_shard(request.line.get("shard"));
  const RowNames names(request.points, settings.fingerprint);
  const std::vector<std::size_t> own = rows_of(shard, chunks_of(request.points));
  std::vector<study::SweepPoint> selected;
  for (const std::size_t point : own) selected.push_back(request.points[point]);
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
  const study::SweepResult result = evaluated(selected, settings, watch);
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
                   names.total(), request.line.has("out") ? ": " : "", out.path()));
  return ExitCode::ok;
}

// The sweep together with the other processes of an mpirun or srun.
ExitCode run_with_others(const SweepRequest& request, const Launched& process) {
  if (!request.line.has("out")) {
    throw UsageError(fmt::format(
        "--out is missing: {} processes were started together and share one sweep (see --shard for "
        "parts of your own)",
        process.size));
  }
  const InterruptWatch watch;
  study::SweepSettings settings;
  settings.jobs = request.settings.jobs;
  settings.seconds_of_pass = request.settings.seconds_of_pass;
  settings.stop = &watch.flag();
  const RowNames names(request.points, request.settings.fingerprint);
  return run_shared({request.points, names, request.out.path(), request.settings.resume, settings},
                    process);
}

// The sweep in one process.
ExitCode run_whole(const SweepRequest& request) {
  const Output& out = request.out;
  const bool replaces = exists(out.path());
  warn_of_too_large(request.points);
  const InterruptWatch watch;
  const study::SweepResult result = evaluated(request.points, request.settings, watch);
  const std::vector<study::Row> rows = finished_rows(result);
  if (!result.complete()) return stopped(request, rows);
  const std::size_t refused = warn_of_refused(rows);
  warn_of_unfit(rows);
  note_high_mfu(rows);
  warn_of_differing_k(rows);
  // Nothing to replace an earlier result by.
  const bool keep = replaces && refused == rows.size();
  if (keep) {
    note(fmt::format("{}: left as it was, as every scenario was refused", out.path()));
  } else {
    write_keeping(out, rendered(rows, request.format), request.format, sweep_option_columns());
  }
  if (!request.settings.journal.empty()) ::unlink(request.settings.journal.c_str());
  if (request.points.size() > rows.size()) {
    note(fmt::format(
        "{} of {} combinations left out: they differ from another only in what their router, "
        "or mode, has no use for",
        request.points.size() - rows.size(), request.points.size()));
  }
  if (request.line.has("out") && !keep) {
    note(fmt::format("{} scenario{}: {}", rows.size(), rows.size() == 1 ? "" : "s", out.path()));
  }
  // A row that cannot be is a row; a sweep of nothing else has failed.
  return refused == rows.size() ? ExitCode::failure : ExitCode::ok;
}

ExitCode run(const CommandLine& line) {
  SweepRequest request = sweep_request(line);
  const std::optional<Launched> process = launched();
  check_parts(request, process.has_value());
  if (line.has("shard")) return run_shard(request);
  if (take_finished_rows(request, process.has_value())) return ExitCode::ok;
  return process ? run_with_others(request, *process) : run_whole(request);
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
          std::string(
              "Every scenario option also takes a list a,b,c; numbers also take lo:hi:step.\n") +
              layout_help};
}

}  // namespace moesim::tool
