#include "tools/moesim/sweep/sweep_resume.hpp"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/report/finished_rows.hpp"
#include "sim/study/sweep/baseline.hpp"
#include "tools/moesim/sweep/shared_sweep.hpp"

namespace moesim::tool {
namespace {

// Those of the rows of a finished sweep that are compared with the baseline of this one. Throws
// UsageError where there is none: the rows are compared with no baseline or another.
std::map<std::size_t, study::Row> rows_of_baseline(const SweepRequest& request,
                                                   const std::map<std::size_t, study::Row>& rows) {
  study::ComparedRows compared =
      study::compared_rows(request.points, request.settings.baseline_of, rows);
  if (!compared.differs && !compared.alike.empty()) return std::move(compared.alike);
  std::string why = "compared with another baseline than " + request.baseline;
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
      request.out.path(), why, instead));
}

// The rows of a finished sweep in the file that --resume names, where there is no interrupted one.
// Throws UsageError if none of its rows is of this sweep.
std::map<std::size_t, study::Row> rows_of_finished(const SweepRequest& request) {
  const std::string& path = request.out.path();
  if (request.format != report::Format::csv) {
    throw UsageError(
        fmt::format("--resume: {} exists, and no interrupted sweep beside it; rows are read back "
                    "from CSV only: "
                    "choose another --out, or leave --resume out to replace it",
                    path));
  }
  report::FinishedRows finished = report::finished_rows(path, request.points);
  if (finished.rows.empty()) {
    throw UsageError(fmt::format(
        "--resume: {} is finished, and none of its {} scenarios has these options: choose another "
        "--out, or leave --resume out to replace it",
        path, finished.in_file));
  }
  if (!request.baseline.empty()) {
    finished.rows = rows_of_baseline(request, finished.rows);
  } else if (finished.rows.size() < request.total) {  // the new rows are compared with none
    for (auto& [index, row] : finished.rows) row = study::without_baseline(std::move(row));
  }
  if (finished.rows.size() < request.total || finished.in_file > request.total) {
    note(fmt::format(
        "--resume: {} is finished: {} of these {} scenarios are taken from it by their options "
        "(without --resume all are computed anew, by the documents and program of today)",
        path, finished.rows.size(), request.total));
  }
  return std::move(finished.rows);
}

}  // namespace

void note_fresh_start(const Output& out) {
  note(fmt::format("--resume: no interrupted sweep beside {}: starting from the first scenario",
                   out.path()));
}

bool take_finished_rows(SweepRequest& request, bool of_several) {
  study::SweepSettings& settings = request.settings;
  const std::string& path = request.out.path();
  if (!settings.resume || exists(settings.journal)) return false;
  const bool has_parts = of_several && exists(parts_folder(path));
  if (!exists(path) || has_parts) {
    if (!of_several) note_fresh_start(request.out);
    return false;
  }
  settings.known = rows_of_finished(request);
  if (settings.known.size() < request.total) return false;
  note(fmt::format(
      "{}: already complete, {} scenarios (found by their options; without --resume all "
      "are computed anew, by the documents and program of today)",
      path, request.total));
  return true;
}

}  // namespace moesim::tool
