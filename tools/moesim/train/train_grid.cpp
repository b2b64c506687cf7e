#include "tools/moesim/train/train_grid.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <mutex>
#include <set>

#include "sim/base/contains.hpp"
#include "sim/base/file.hpp"
#include "sim/base/parallel.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/text.hpp"
#include "sim/job/job_options.hpp"
#include "sim/scenario/document_cache.hpp"
#include "sim/study/sweep/grid.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/base/interrupt.hpp"
#include "tools/moesim/base/kept_result.hpp"
#include "tools/moesim/base/progress.hpp"
#include "tools/moesim/megatron/megatron_options.hpp"
#include "tools/moesim/scenario/scenario_notes.hpp"
#include "tools/moesim/train/train_journal.hpp"
#include "tools/moesim/train/train_losses.hpp"
#include "tools/moesim/train/train_request.hpp"
#include "tools/moesim/train/train_table.hpp"
#include "tools/moesim/train/train_warnings.hpp"

namespace moesim::tool {
namespace {

constexpr const char* of_one_step[] = {"measured", "timeline", "timeline-gpus"};
// Never lists: files and how to write the result.
constexpr const char* single[] = {"out",    "format", "jobs",   "baseline",     "megatron",
                                  "config", "from",   "resume", "train-tokens", "gpu-hour-price"};

std::vector<std::string> values_of(const Flag& flag, const std::string& text) {
  const std::string name = "--" + flag.name;
  if (flag.value != std::string("LIST")) return study::expand(name, text, flag.is_number);
  std::vector<std::string> sets;
  for (const std::string_view part : split(text, '/')) sets.emplace_back(part);
  return sets;
}

TrainPoint predicted(const TrainGrid& grid, std::size_t at, const RowOf& row,
                     training::SharedDraws& shared, scenario::DocumentCache& documents) {
  const CommandLine& line = grid.lines[at];
  TrainPoint point;
  point.done = true;
  if (!grid.refusals.empty() && !grid.refusals[at].empty()) {
    point.refusal = grid.refusals[at];
    return point;
  }
  try {
    training::TrainingJob job = requested_job(line, true, &documents);
    note_cluster(line, job);
    note_graph_buffers(job);
    note_zero_under_pipeline(job);
    note_left_out(*job.model, job.typed.model);
    note_step_depths(job, true);
    note_software(line, job);
    study::TrainingPrediction made = predicted_training(line, std::move(job), {}, &shared);
    job = std::move(made.job);
    const training::TrainingStep& step = made.step;
    TrainBand band = requested_band(line, job, step, std::move(made.band));
    // Rows are computed in parallel: one thread each.
    band.loss = requested_loss_band(line, job, step, 1, {}, &shared);
    point.row = row(line, job, step, band);
    const MemoryRoom room = room_of(job, step);
    point.fits = room != MemoryRoom::none;
    point.is_tight = room == MemoryRoom::tight;
    point.software = band.subject.software;
  } catch (const UnknownDocument&) {
    throw;  // of the command line, which knows the flag
  } catch (const UnreadableFile&) {
    throw;
  } catch (const Error& error) {
    point.refusal = error.what();
  }
  return point;
}

void warn(const std::vector<TrainPoint>& points) {
  const auto refused = static_cast<std::size_t>(
      std::count_if(points.begin(), points.end(), [](const TrainPoint& one) { return !one.row; }));
  const auto unfit =
      std::count_if(points.begin(), points.end(), [](const TrainPoint& one) { return !one.fits; });
  if (refused > 0) {
    const auto first =
        std::find_if(points.begin(), points.end(), [](const TrainPoint& one) { return !one.row; });
    note(
        fmt::format("warning: {} of {} steps were refused (columns status and reason); the first: "
                    "{}",
                    refused, points.size(), first->refusal));
  }
  if (unfit > 0) {
    note(
        fmt::format("warning: {} of {} steps do not fit in the memory of a GPU (column "
                    "fits_memory): moesim train with one of them says what would make it fit",
                    unfit, points.size()));
  }
}

// Predicts the points that are not done yet, and saves each.
void predict_rest(std::vector<TrainPoint>& points, const TrainGrid& grid, int jobs,
                  const InterruptWatch& watch, TrainJournal& journal, const RowOf& row) {
  const EachNoteOnce once;
  training::SharedDraws shared;
  scenario::DocumentCache documents;
  ProgressLine progress("steps");
  std::mutex counting;
  const auto start = std::chrono::steady_clock::now();
  study::SweepProgress state;
  state.total = points.size();
  state.resumed = journal.resumed();
  state.done = state.resumed;
  parallel_for(points.size(), jobs, [&](std::size_t at) {
    if (points[at].done || watch.flag()) return;
    TrainPoint point = predicted(grid, at, row, shared, documents);
    journal.add(at, point);
    points[at] = std::move(point);
    const std::lock_guard lock(counting);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    ++state.done;
    state.seconds_left = taken.count() / static_cast<double>(state.done - state.resumed) *
                         static_cast<double>(state.total - state.done);
    progress.show(state);
  });
  progress.finish();
}

// All that a row says: equal for points that differ in what has no effect.
std::string text_of(const NamedCells& row) { return report::to_csv(row.names, {row.cells}); }

// Moves the points that are done and repeat none before them to `rows`, with their values in
// `finished`; says how many repeat one.
std::size_t take_distinct(std::vector<TrainPoint>& points, const TrainGrid& grid,
                          std::vector<TrainPoint>& rows, TrainGrid& finished) {
  std::set<std::string> seen;
  std::size_t repeats = 0;
  for (std::size_t at = 0; at < points.size(); ++at) {
    if (!points[at].done) continue;
    if (points[at].row && !seen.insert(text_of(*points[at].row)).second) {
      ++repeats;
      continue;
    }
    rows.push_back(std::move(points[at]));
    finished.values.push_back(grid.values[at]);
  }
  return repeats;
}

// Gives each step the price of its profile.
void take_prices(const CommandLine& line, TrainGrid& grid) {
  const auto flag = std::find_if(grid.flags.begin(), grid.flags.end(),
                                 [](const Flag& each) { return each.name == "profile"; });
  const bool is_one = flag == grid.flags.end();
  const std::vector<std::string> profiles =
      is_one ? std::vector<std::string>{""} : values_of(*flag, line.get("profile"));
  const std::vector<std::string> prices = prices_of_each(line, profiles.size(), profiles.size());
  if (prices.size() < 2) return;
  for (CommandLine& each : grid.lines) {
    const auto at = std::find(profiles.begin(), profiles.end(), each.get("profile"));
    each.values["gpu-hour-price"] = prices[static_cast<std::size_t>(at - profiles.begin())];
  }
}

}  // namespace

TrainGrid train_grid(const CommandLine& line, const std::vector<Flag>& flags) {
  TrainGrid grid;
  grid.values.emplace_back();
  grid.lines.push_back(line);
  for (const Flag& flag : flags) {
    if (!line.has(flag.name) || contains(single, flag.name) || contains(of_one_step, flag.name)) {
      continue;
    }
    const std::vector<std::string> values = values_of(flag, line.get(flag.name));
    if (values.size() < 2) continue;
    if (values.size() > max_train_points / grid.lines.size()) {
      throw UsageError(fmt::format("the lists and ranges make more than {} steps: use fewer values",
                                   max_train_points));
    }
    grid.flags.push_back(flag);
    std::vector<CommandLine> lines;
    std::vector<std::vector<std::string>> chosen;
    for (std::size_t at = 0; at < grid.lines.size(); ++at) {
      for (const std::string& value : values) {
        lines.push_back(grid.lines[at]);
        lines.back().values[flag.name] = value;
        chosen.push_back(grid.values[at]);
        chosen.back().push_back(value);
      }
    }
    grid.lines = std::move(lines);
    grid.values = std::move(chosen);
  }
  take_prices(line, grid);
  for (const char* const flag : of_one_step) {
    if (grid.is_one() || !line.has(flag)) continue;
    throw UsageError(fmt::format("--{} with several values of --{}: is of one step: give one value",
                                 flag, grid.flags.front().name));
  }
  return grid;
}

CommandLine take_megatron(TrainGrid& grid, CommandLine line) {
  const EachNoteOnce once;
  grid.refusals.assign(grid.lines.size(), "");
  for (std::size_t at = 0; at < grid.lines.size(); ++at) {
    CommandLine& each = grid.lines[at];
    try {
      each = with_megatron(train_command(), each);
    } catch (const UnknownDocument&) {
      throw;
    } catch (const UnreadableFile&) {
      throw;
    } catch (const Error& error) {
      if (grid.is_one()) throw;
      grid.refusals[at] = error.what();
      continue;
    }
    for (const std::string& option : each.of_row) {
      if (line.values.emplace(option, each.get(option)).second) line.of_row.insert(option);
    }
  }
  return line;
}

namespace {

// Throws UnknownDocument or UnreadableFile for a value that names no document.
void check_documents(const TrainGrid& grid) {
  for (const char* const option : {"model", "profile", "cluster", "dispatcher"}) {
    std::set<std::string> checked;
    for (const CommandLine& line : grid.lines) {
      const std::string value = line.get(option);
      if (value.empty() || !checked.insert(value).second) continue;
      CommandLine alone;
      alone.values[option] = value;
      try {
        resolved_job(alone, true);
      } catch (const UnknownDocument& error) {
        if (error.name() == value) throw;
      } catch (const UnreadableFile& error) {
        if (error.path() == value) throw;
      } catch (const Error&) {
        // Its row says so, if it still is one beside the other options.
      }
    }
  }
}

// Throws UsageError for a value that makes no sense whatever the others are, before any row is
// predicted: rows that were kept would be of another command than the corrected one.
void check_values(const TrainGrid& grid) {
  check_documents(grid);
  for (std::size_t at = 0; at < grid.flags.size(); ++at) {
    const std::string& option = grid.flags[at].name;
    std::set<std::string> checked;
    for (const std::vector<std::string>& values : grid.values) {
      if (!checked.insert(values[at]).second) continue;
      if (option == software_option) study::check_software(values[at]);
      const job::JobOption* const of_job = job::find_job_option(option);
      if (of_job != nullptr) of_job->check_text(values[at]);
    }
  }
}

}  // namespace

ExitCode run_train_grid(const CommandLine& line, const TrainGrid& grid, const RowOf& row) {
  const bool to_file = line.has("out");
  const report::Format format =
      chosen_format(line, to_file ? report::Format::csv : report::Format::table);
  const Output out(line.get("out"));
  requested_run_cost(grid.lines.front());  // an error at once, not in every row
  check_values(grid);
  const InterruptWatch watch;
  std::vector<TrainPoint> points(grid.lines.size());
  TrainJournal journal(line, grid, points);
  predict_rest(points, grid, chosen_jobs(line), watch, journal, row);
  const auto done = static_cast<std::size_t>(
      std::count_if(points.begin(), points.end(), [](const TrainPoint& one) { return one.done; }));
  const bool complete = done == points.size();
  if (journal.is_finished() && !complete) {
    note(fmt::format("interrupted: {} is as it was", out.path()));
    return ExitCode::interrupted;
  }
  const char* const how_to_go_on = journal.keeps()
                                       ? "; the same command with --resume continues"
                                       : "; with --out FILE an interrupted run can be resumed";
  TrainGrid finished;
  finished.flags = grid.flags;
  std::vector<TrainPoint> rows;
  const std::size_t repeats = take_distinct(points, grid, rows, finished);
  if (std::none_of(rows.begin(), rows.end(), [](const TrainPoint& one) { return one.row; })) {
    if (!complete) {
      note(fmt::format("interrupted: {} of {} steps, none of them predicted: nothing written{}",
                       done, points.size(), how_to_go_on));
      return ExitCode::interrupted;
    }
    journal.remove();
    throw UsageError(
        fmt::format("all {} steps were refused; the first: {}", rows.size(), rows.front().refusal));
  }
  const std::string text = table_text(line, rows, finished, format);
  if (journal.is_finished()) {
    journal.compare(out.path(), text);
    note(fmt::format("already complete: {} steps: {}", rows.size(), out.path()));
    return ExitCode::ok;
  }
  write_keeping(out, text, format, train_option_columns());
  warn(rows);
  if (repeats > 0) {
    note(
        fmt::format("{} of {} combinations left out: they differ from another only in what has no "
                    "effect",
                    repeats, rows.size() + repeats));
  }
  if (!complete) {
    note(fmt::format("interrupted: {} of {} steps written{}", done, points.size(), how_to_go_on));
    return ExitCode::interrupted;
  }
  journal.remove();
  if (to_file) note(fmt::format("{} steps: {}", rows.size(), out.path()));
  return ExitCode::ok;
}

}  // namespace moesim::tool
