#include "tools/moesim/sweep/sweep_request.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "sim/base/error.hpp"
#include "sim/study/sweep/baseline.hpp"
#include "sim/study/sweep/grid.hpp"
#include "sim/study/sweep/journal.hpp"
#include "tools/moesim/base/commit.hpp"
#include "tools/moesim/scenario/scenario_notes.hpp"
#include "tools/moesim/sweep/sweep_warnings.hpp"

namespace moesim::tool {
namespace {

// Rows are to come, and to be kept if the sweep is stopped, every few seconds.
constexpr double seconds_of_pass = 5;

// The scenarios of points, as far as they could be filled in.
std::vector<const scenario::Scenario*> scenarios_of(const std::vector<study::SweepPoint>& points) {
  std::vector<const scenario::Scenario*> scenarios;
  for (const study::SweepPoint& point : points) {
    if (point.scenario) scenarios.push_back(&*point.scenario);
  }
  return scenarios;
}

// The program: parts and journals of another one do not fit.
std::string build_name() { return fmt::format("{} {}", MOESIM_VERSION, source_commit()); }

}  // namespace

SweepRequest sweep_request(const CommandLine& line) {
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
  note_equal_weights(scenarios);
  note_second_experts(scenarios);
  {
    const EachNoteOnce once;
    for (const scenario::Scenario* one : scenarios) note_left_out(*one->model, one->model_name);
  }
  const std::string baseline = line.get("baseline");
  if (!baseline.empty()) settings.baseline_of = study::baselines(points, baseline);
  note_scores(line.scenario(), scenarios);
  note_usual_groups(line.scenario(), scenarios);
  Output out(line.get("out"));
  settings.journal = study::journal_path(out.path());
  settings.fingerprint = study::fingerprint(points, fmt::format("{} {}", build_name(), baseline));
  const auto total = static_cast<std::size_t>(
      std::count_if(points.begin(), points.end(), [](const auto& each) { return !each.repeats; }));
  return {line, format, std::move(points), baseline, std::move(out), std::move(settings), total};
}

bool exists(const std::string& path) { return !path.empty() && ::access(path.c_str(), F_OK) == 0; }

}  // namespace moesim::tool
