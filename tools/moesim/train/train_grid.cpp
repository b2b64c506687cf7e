#include "tools/moesim/train/train_grid.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "sim/base/parallel.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/text.hpp"
#include "sim/report/slot_share.hpp"
#include "sim/study/search/memory_share.hpp"
#include "sim/study/sweep/grid.hpp"
#include "sim/uncertainty/step_distance.hpp"
#include "tools/moesim/bands/capacity_pair.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/interrupt.hpp"
#include "tools/moesim/output.hpp"
#include "tools/moesim/part_columns.hpp"
#include "tools/moesim/progress.hpp"
#include "tools/moesim/train/train_journal.hpp"
#include "tools/moesim/train/train_report.hpp"
#include "tools/moesim/train/train_request.hpp"

namespace moesim::tool {
namespace {

constexpr const char* of_one_step[] = {"measured", "timeline", "timeline-gpus"};
// Never lists: files and how to write the result.
constexpr const char* single[] = {"out",    "format", "jobs",   "baseline",     "megatron",
                                  "config", "from",   "resume", "train-tokens", "gpu-hour-price"};

bool is_in(const std::string& name, const char* const* first, const char* const* last) {
  return std::find(first, last, name) != last;
}

bool takes_numbers(const Flag& flag) {
  constexpr const char* placeholders[] = {"N", "X", "CF", "C", "K", "US", "MS"};
  return is_in(flag.value, std::begin(placeholders), std::end(placeholders));
}

std::vector<std::string> values_of(const Flag& flag, const std::string& text) {
  const std::string name = "--" + flag.name;
  if (flag.value != std::string("LIST")) return study::expand(name, text, takes_numbers(flag));
  std::vector<std::string> sets;
  for (const std::string_view part : split(text, '/')) sets.emplace_back(part);
  return sets;
}

TrainPoint predicted(const CommandLine& line) {
  TrainPoint point;
  point.done = true;
  try {
    const training::TrainingJob job = requested_job(line, true);
    note_cluster(line, job);
    note_graph_buffers(job);
    note_software(line, job);
    training::TrainingStep step = training::training_step(job);
    const TrainBand band = requested_band(line, job, step);
    point.row = training_row(job, step, band);
    const Bytes room = job.profile->device().hbm_bytes;
    point.fits = step.peak_memory() <= room;
    point.is_tight = static_cast<double>(step.peak_memory().count) >
                     study::usual_memory_share * static_cast<double>(room.count);
    point.software = band.subject.software;
  } catch (const UnknownDocument&) {
    throw;  // of the command line, which knows the flag
  } catch (const Error& error) {
    point.refusal = error.what();
  }
  return point;
}

// All that a row says: equal for points that differ in what has no effect.
std::string text_of(const NamedCells& row) { return report::to_csv(row.names, {row.cells}); }

// The columns of all rows: those of the first, then what later ones have besides.
std::vector<std::string> columns_of(const std::vector<TrainPoint>& points, const TrainGrid& grid) {
  std::vector<std::string> columns = {"status", "reason"};
  for (const TrainPoint& point : points) {
    if (point.row) add_columns(*point.row, columns);
  }
  for (const Flag& flag : grid.flags) {  // where every point is refused
    const std::string column = column_of(flag);
    if (std::find(columns.begin(), columns.end(), column) == columns.end()) {
      columns.push_back(column);
    }
  }
  return columns;
}

Cell cell_of(const TrainPoint& point, const std::string& column) {
  return point.row ? point.row->cell(column) : Cell();
}

// Of a refused point the values that were typed are all there is to say.
std::vector<report::CellRow> cells_of(const std::vector<TrainPoint>& points, const TrainGrid& grid,
                                      const std::vector<std::string>& columns) {
  std::vector<report::CellRow> rows;
  for (std::size_t at = 0; at < points.size(); ++at) {
    const TrainPoint& point = points[at];
    report::CellRow row = {std::string(point.row ? "ok" : "refused"),
                           point.row ? Cell() : Cell(point.refusal)};
    for (std::size_t column = row.size(); column < columns.size(); ++column) {
      row.push_back(cell_of(point, columns[column]));
    }
    for (std::size_t flag = 0; !point.row && flag < grid.flags.size(); ++flag) {
      const auto column = std::find(columns.begin(), columns.end(), column_of(grid.flags[flag]));
      row[static_cast<std::size_t>(column - columns.begin())] = grid.values[at][flag];
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string number(const TrainPoint& point, const char* column, double scale, int digits) {
  const Cell cell = cell_of(point, column);
  const double* const value = std::get_if<double>(&cell);
  return value == nullptr ? "" : fmt::format("{:.{}f}", scale * *value, digits);
}

double figure(const TrainPoint& point, const std::string& column) {
  const Cell cell = cell_of(point, column);
  const double* const value = std::get_if<double>(&cell);
  return value == nullptr ? 0.0 : *value;
}

bool waits_for_host(const TrainPoint& point) {
  static const std::string column =
      part_column(name_in(training::part_names, training::Part::host));
  return host_limits(figure(point, column), figure(point, "step_ms"));
}

// What is to know of a row: "TIGHT, host limits".
std::string remark(const TrainPoint& point) {
  if (!point.row) return "refused";
  std::vector<std::string> words;
  if (!point.fits || point.is_tight) words.emplace_back(point.fits ? "TIGHT" : "does not fit");
  if (waits_for_host(point)) words.emplace_back("host limits");
  return fmt::format("{}", fmt::join(words, ", "));
}

// Under the table, where rows are tight.
std::string tight_text(const std::vector<TrainPoint>& points) {
  const bool any = std::any_of(points.begin(), points.end(), [](const TrainPoint& point) {
    return point.row && point.fits && point.is_tight;
  });
  return any ? fmt::format("TIGHT: more than {:.0f} % of a GPU's memory; libraries need some too\n",
                           100 * study::usual_memory_share)
             : "";
}

// Under the table, where rows wait for the host: nothing else tells why they take the same time.
std::string host_text(const std::vector<TrainPoint>& points) {
  const auto count = std::count_if(points.begin(), points.end(), waits_for_host);
  if (count == 0) return "";
  const auto steps = std::count_if(points.begin(), points.end(),
                                   [](const TrainPoint& point) { return point.row.has_value(); });
  return fmt::format(
      "host limits {} of {} steps: what the GPU does faster does not shorten them; try\n  {}\n",
      count, steps, host_remedy);
}

// Under the table, where rows lose nothing by the model's own router, what it passes over.
std::string not_chosen_text(const std::vector<TrainPoint>& points) {
  std::vector<double> shares;
  for (const TrainPoint& point : points) {
    const double residual = figure(point, "residual_loss");
    if (figure(point, "counted_loss") < residual) shares.push_back(residual);
  }
  if (shares.empty()) return "";
  const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
  const std::string text = fmt::format("{:.2f}", 100 * *least);
  const std::string last = fmt::format("{:.2f}", 100 * *most);
  return fmt::format(
      "token loss 0.00: no route is dropped; not counted: {}{} % of the weight of a token's k best "
      "experts,\n  {} (column residual_loss)\n",
      text, text == last ? "" : " to " + last, not_chosen);
}

// "80 %": the level of the bands, the same for all rows of one software.
std::string band_level(const std::vector<TrainPoint>& points) {
  std::string text;
  for (const TrainPoint& point : points) {
    if (!point.row) continue;
    const std::string level = number(point, "band_level", 100, 0) + " %";
    if (text.empty()) text = level;
    if (text != level) return "widest band";
  }
  return text;
}

// As typed; empty where it does not apply.
std::string shown_value(const TrainPoint& point, const Flag& flag, const std::string& typed) {
  if (!point.row) return typed;
  return point.row->has(column_of(flag)) && is_absent(cell_of(point, column_of(flag))) ? "" : typed;
}

struct CostColumn {
  const char* name;
  const char* heading;
  int digits;
};

// Those that were asked for.
std::vector<CostColumn> cost_columns(const std::vector<TrainPoint>& points) {
  std::vector<CostColumn> columns = {{"run_days", "days", 1},
                                     {"run_cost", "cost", 0},
                                     {"cost_per_1e12_tokens", "cost/1e12 tokens", 0}};
  std::erase_if(columns, [&](const CostColumn& column) {
    return std::all_of(points.begin(), points.end(), [&](const TrainPoint& point) {
      return number(point, column.name, 1, 0).empty();
    });
  });
  return columns;
}

std::string table_of(const std::vector<TrainPoint>& points, const TrainGrid& grid) {
  std::vector<std::string> heading;
  for (const Flag& flag : grid.flags) heading.push_back(column_of(flag));
  const bool drawn = std::any_of(points.begin(), points.end(), [](const TrainPoint& point) {
    return !number(point, "counted_loss", 1, 0).empty();
  });
  const std::string level = band_level(points);
  heading.insert(heading.end(), {"step ms", fmt::format("if measured, {}", level), "tokens/s/GPU",
                                 "MFU %", "memory GiB"});
  const std::vector<CostColumn> costs = cost_columns(points);
  for (const CostColumn& column : costs) heading.emplace_back(column.heading);
  report::SlotShares slots;
  for (const TrainPoint& point : points) {
    slots.add(cell_of(point, "padding"), cell_of(point, "capacity"));
  }
  if (drawn) {
    heading.emplace_back("token loss %");
    if (slots.any()) heading.push_back(slots.heading());
    heading.emplace_back("imbalance");
  }
  const bool compared = std::any_of(points.begin(), points.end(), [](const TrainPoint& point) {
    return !number(point, "speed_over_baseline", 1, 0).empty();
  });
  if (compared) heading.insert(heading.end(), {"speed over baseline", "more than noise at"});
  heading.emplace_back();
  std::vector<std::vector<std::string>> lines = {heading};
  for (std::size_t at = 0; at < points.size(); ++at) {
    const TrainPoint& point = points[at];
    std::vector<std::string> line;
    for (std::size_t flag = 0; flag < grid.flags.size(); ++flag) {
      line.push_back(shown_value(point, grid.flags[flag], grid.values[at][flag]));
    }
    line.push_back(number(point, "step_ms", 1, 1));
    line.push_back(point.row ? fmt::format("{} to {}", number(point, "step_ms_low", 1, 0),
                                           number(point, "step_ms_high", 1, 0))
                             : "");
    line.push_back(number(point, "tokens_per_s_per_gpu", 1, 0));
    line.push_back(number(point, "mfu", 100, 1));
    line.push_back(number(point, "memory_gib", 1, 1));
    for (const CostColumn& column : costs) {
      line.push_back(number(point, column.name, 1, column.digits));
    }
    if (drawn) {
      line.push_back(number(point, "counted_loss", 100, 2));
      const bool has_slots =
          report::SlotShares::has_slots(cell_of(point, "padding"), cell_of(point, "capacity"));
      if (slots.any()) line.push_back(has_slots ? number(point, "padded", 100, 2) : "");
      line.push_back(number(point, "imbalance", 1, 3));
    }
    if (compared) {
      line.push_back(number(point, "speed_over_baseline", 1, 3));
      const std::string surety = number(point, "beyond_noise_level", 100, 0);
      line.push_back(!point.row ? "" : surety.empty() ? "within noise" : surety + " %");
    }
    line.push_back(remark(point));
    lines.push_back(std::move(line));
  }
  std::vector<bool> right(heading.size(), true);
  std::fill_n(right.begin(), grid.flags.size(), false);
  right.back() = false;
  return report::align(lines, right);
}

// uncertainty::part_times() of a row.
std::vector<double> part_times(const TrainPoint& point) {
  std::vector<double> times;
  for (const std::string& column : training_part_columns()) {
    times.push_back(figure(point, column) / figure(point, "step_ms") * 1e6 /
                    figure(point, "tokens_per_s_per_gpu"));
  }
  return times;
}

// "-17 to +20 % with 90 %, ...": how far the ratio of two steps may be off.
std::string levels_text(const uncertainty::Band& ratio) {
  std::vector<std::string> levels;
  for (auto level = ratio.levels.rbegin(); level != ratio.levels.rend(); ++level) {
    levels.push_back(fmt::format("{:+.0f} to {:+.0f} % with {:.0f} %",
                                 100 * std::expm1(level->log_ratios.low),
                                 100 * std::expm1(level->log_ratios.high), 100 * level->level));
  }
  return fmt::format("{}", fmt::join(levels, ", "));
}

// Of rows on one cluster that are padded and differ in router and capacity alone the widest band of
// one and the first like it; nothing where no two are such.
struct CapacityRows {
  std::optional<uncertainty::Band> band;
  bool are_all = true;  // all rows are such, of one kind
};

CapacityRows capacity_rows(const std::vector<TrainPoint>& points) {
  CapacityRows found;
  std::map<std::string, const TrainPoint*> firsts;
  std::optional<cluster::Cluster> cluster;
  for (const TrainPoint& point : points) {
    if (!point.row) continue;
    const auto key = all_but_capacity(
        [&](const std::string& column) { return report::text_of(cell_of(point, column)); });
    found.are_all = found.are_all && key;
    if (!key) continue;
    const auto [first, is_new] = firsts.emplace(*key, &point);
    if (is_new) continue;
    if (!cluster) cluster = cluster::Cluster::load(report::text_of(cell_of(point, "cluster")));
    const uncertainty::Band band =
        capacity_pair_band(part_times(*first->second), part_times(point), *cluster,
                           static_cast<int>(number_in(cell_of(point, "gpus"))));
    const bool is_wider =
        !found.band || band.widest().log_ratios.width() > found.band->widest().log_ratios.width();
    if (is_wider) found.band = band;
  }
  found.are_all = found.are_all && firsts.size() == 1;
  return found;
}

// The deviation of the log of the ratio of two rows by what no published step has: what both have
// cancels. Where each has something alone, all of both counts.
double unmeasured_between(const TrainPoint& one, const TrainPoint& other) {
  const auto texts = [](const TrainPoint& point) {
    std::vector<std::string> found = listed(report::text_of(cell_of(point, not_measured_column)));
    std::sort(found.begin(), found.end());
    return found;
  };
  const auto deviation = [](const TrainPoint& point) {
    const std::string text = report::text_of(cell_of(point, unmeasured_column));
    return text.empty() ? 0 : number_in(cell_of(point, unmeasured_column));
  };
  const std::vector<std::string> first = texts(one), second = texts(other);
  const double both = std::hypot(deviation(one), deviation(other));
  const double apart = std::pow(deviation(one), 2) - std::pow(deviation(other), 2);
  if (first == second) return 0;
  const bool is_subset = std::includes(first.begin(), first.end(), second.begin(), second.end()) ||
                         std::includes(second.begin(), second.end(), first.begin(), first.end());
  return is_subset ? std::sqrt(std::abs(apart)) : both;
}

// What rows of one machine, cluster and software share cancels between them: how far the ratio of
// two may be off. Empty where one of these differs.
std::string ratio_text(const CommandLine& line, const TrainGrid& grid,
                       const std::vector<TrainPoint>& points) {
  const auto varies = [&](const char* flag) {
    return std::any_of(grid.flags.begin(), grid.flags.end(),
                       [&](const Flag& one) { return one.name == flag; });
  };
  const auto first =
      std::find_if(points.begin(), points.end(), [](const TrainPoint& point) { return point.row; });
  if (first == points.end() || varies("profile") || varies("cluster") || varies("software")) {
    return "";
  }
  constexpr const char* cancels =
      "between two rows errors of software and machine cancel: the measured ratio of ";
  const CapacityRows padded = capacity_rows(points);
  if (padded.band && padded.are_all) {
    return fmt::format("{}these is off by\n  {} chance,\n  by {}\n", cancels,
                       levels_text(*padded.band), capacity_pairs_text());
  }
  const bool same_model = !varies("model");
  double farthest = 0;
  double unmeasured = 0;
  for (const TrainPoint& point : points) {
    if (!point.row) continue;
    unmeasured = std::max(unmeasured, unmeasured_between(*first, point));
    if (!same_model) continue;
    farthest =
        std::max(farthest, uncertainty::step_distance(part_times(*first), part_times(point)));
  }
  const uncertainty::Band ratio =
      shipped_errors().ratio_band(first->software, same_model, farthest, unmeasured);
  std::string text = fmt::format(
      "{}{} is off by\n  {} chance,\n  by {} groups of published pairs, which differ in more than "
      "routing{}\n",
      cancels, same_model ? "the first and the most different step" : "steps", levels_text(ratio),
      ratio.held_out, line.has("software") ? "" : "; --software says whose steps count");
  if (padded.band) {
    text += fmt::format(
        "  but of rows that are padded to a capacity and differ in router and capacity alone by\n  "
        "{} "
        "chance,\n  by {}\n",
        levels_text(*padded.band), capacity_pairs_text());
  }
  return text;
}

// Of rows that were predicted, by their numbers.
std::string unmeasured_text(const std::vector<TrainPoint>& rows) {
  std::vector<NotMeasured> steps;
  for (std::size_t at = 0; at < rows.size(); ++at) {
    if (!rows[at].row) continue;
    const Cell cell = rows[at].row->cell(not_measured_column);
    const auto* text = std::get_if<std::string>(&cell);
    steps.push_back({fmt::format("row {}", at + 1),
                     text == nullptr ? std::vector<std::string>() : listed(*text)});
  }
  return not_measured_line(steps);
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
                  const InterruptWatch& watch, TrainJournal& journal) {
  const EachNoteOnce once;
  ProgressLine progress("steps");
  std::mutex counting;
  const auto start = std::chrono::steady_clock::now();
  study::SweepProgress state;
  state.total = points.size();
  state.resumed = journal.resumed();
  state.done = state.resumed;
  parallel_for(points.size(), jobs, [&](std::size_t at) {
    if (points[at].done || watch.flag()) return;
    TrainPoint point = predicted(grid.lines[at]);
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

std::string text_of(const CommandLine& line, const TrainGrid& grid,
                    const std::vector<TrainPoint>& rows, const TrainGrid& finished,
                    report::Format format) {
  if (format == report::Format::table) {
    return table_of(rows, finished) + tight_text(rows) + unmeasured_text(rows) + host_text(rows) +
           not_chosen_text(rows) + ratio_text(line, grid, rows);
  }
  const std::vector<std::string> columns = columns_of(rows, finished);
  const std::vector<report::CellRow> cells = cells_of(rows, finished, columns);
  return format == report::Format::csv ? report::to_csv(columns, cells) : rows_json(columns, cells);
}

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

}  // namespace

TrainGrid train_grid(const CommandLine& line, const std::vector<Flag>& flags) {
  TrainGrid grid;
  grid.values.emplace_back();
  grid.lines.push_back(line);
  for (const Flag& flag : flags) {
    if (!line.has(flag.name) || is_in(flag.name, std::begin(single), std::end(single)) ||
        is_in(flag.name, std::begin(of_one_step), std::end(of_one_step))) {
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
  for (const char* const flag : of_one_step) {
    if (grid.is_one() || !line.has(flag)) continue;
    throw UsageError(fmt::format("--{} with several values of --{}: is of one step: give one value",
                                 flag, grid.flags.front().name));
  }
  return grid;
}

ExitCode run_train_grid(const CommandLine& line, const TrainGrid& grid) {
  const bool to_file = line.has("out");
  const report::Format format =
      chosen_format(line, to_file ? report::Format::csv : report::Format::table);
  const Output out(line.get("out"));
  requested_run_cost(line);  // an error at once, not in every row
  const InterruptWatch watch;
  std::vector<TrainPoint> points(grid.lines.size());
  TrainJournal journal(line, grid, points);
  predict_rest(points, grid, chosen_jobs(line), watch, journal);
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
  const std::string text = text_of(line, grid, rows, finished, format);
  if (journal.is_finished()) {
    journal.compare(out.path(), text);
    note(fmt::format("already complete: {} steps: {}", rows.size(), out.path()));
    return ExitCode::ok;
  }
  out.write(text);
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
