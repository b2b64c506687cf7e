#include "tools/moesim/calibrate/calibrate_rows.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/formats/csv.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/statistics.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/calibrate/calibrate_log.hpp"

namespace moesim::tool {
namespace {

constexpr const char* op_column = "op";
constexpr const char* ms_column = "measured_ms";
constexpr const char* us_column = "measured_us";
// What dashboards show. train writes it too: there it is predicted, beside step_ms.
constexpr const char* speed_column = "tokens_per_s_per_gpu";
constexpr const char* software_column = "software";
// Beyond these a measured time is of another unit or another step: published steps lie within a
// factor of 9 of their prediction.
constexpr double most_ratio = 30;
// The same configuration measured twice.
constexpr double most_repeat_ratio = 1.3;

std::string dashed(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// One file: its table, and which columns are options.
class Rows {
 public:
  Rows(const std::string& path, const CommandLine& line, RowPredictor& predictor);

  // Predicts all rows; throws as load_calibration_rows().
  std::vector<CalibrationRow> predicted() const;
  // Where all rows have another value of a typed option of their own: the words that say so.
  std::optional<std::string> column_of_other(const std::string& flag) const;

 private:
  std::string where(std::size_t row) const {
    return fmt::format("{}: line {}", table_.name, table_.lines[row]);
  }
  std::string op_of(std::size_t row) const;
  CommandLine asked(const std::string& op, std::size_t row) const;
  CalibrationRow row(std::size_t row, const CommandLine& options) const;
  std::set<std::string> option_names() const;
  std::string time_column(std::size_t row) const;
  std::string differing(std::size_t row) const;
  void check_columns(const std::vector<CalibrationRow>& rows) const;

  CsvTable table_;
  const CommandLine& line_;
  RowPredictor& predictor_;
  std::map<std::size_t, std::string> options_;  // column: flag
};

// The options of all operations; those of steps alone where the table has no column that says what
// a row is of.
std::set<std::string> Rows::option_names() const {
  if (table_.find(op_column) == CsvTable::npos) return predictor_.columns_of(step_op);
  std::set<std::string> names;
  for (const std::string& op : predictor_.operations()) names.merge(predictor_.columns_of(op));
  return names;
}

CsvTable measured_table(const std::string& path, const RowPredictor& predictor) {
  for (const char* other : {".yaml", ".yml", ".json"}) {
    if (!path.ends_with(other)) continue;
    throw UsageError(fmt::format(
        "{}: measured steps are a CSV: a row for each, with the columns measured_ms and "
        "options of {}",
        path, predictor.commands()));
  }
  const std::string text = read_file(path);
  if (const auto steps = megatron_log(text, path)) {
    note(steps->summary());
    return steps->table(ms_column);
  }
  return CsvTable::parse(text, path);
}

// A table without a measured time. Throws UsageError unless it has speeds.
void check_speeds(const CsvTable& table) {
  const bool is_predicted = table.find("step_ms") != CsvTable::npos;
  if (table.find(speed_column) != CsvTable::npos && !is_predicted) return;
  for (const std::string& name : table.columns) {
    if (name.rfind("measured", 0) == 0) {
      throw UsageError(fmt::format(
          "{}: line 1, column {}: measured times are in milliseconds, in the column measured_ms, "
          "or in microseconds, in measured_us",
          table.name, name));
    }
    const bool is_speed = name.find("tokens") != std::string::npos ||
                          name.find("flop") != std::string::npos ||
                          name.find("throughput") != std::string::npos;
    if (is_speed && !is_predicted) {
      throw UsageError(fmt::format(
          "{}: line 1, column {}: give the time of a step in measured_ms, global batch x sequence "
          "length x 1000 / tokens per second of all GPUs, or the column {}; of FLOP/s, whose count "
          "differs from program to program, take the time that the trainer printed beside them",
          table.name, name, speed_column));
    }
  }
  table.column(ms_column);
}

Rows::Rows(const std::string& path, const CommandLine& line, RowPredictor& predictor)
    : table_(measured_table(path, predictor)), line_(line), predictor_(predictor) {
  if (table_.find(ms_column) == CsvTable::npos && table_.find(us_column) == CsvTable::npos) {
    check_speeds(table_);
  }
  const std::set<std::string> known = option_names();
  std::set<std::string> seen;
  for (std::size_t column = 0; column < table_.columns.size(); ++column) {
    const std::string name = dashed(table_.columns[column]);
    if (known.count(name) == 0) continue;
    if (!seen.insert(name).second) {
      throw UsageError(fmt::format("{}: line 1, column {}: a second one of it", table_.name, name));
    }
    options_[column] = name;
  }
}

std::string Rows::op_of(std::size_t row) const {
  const std::size_t column = table_.find(op_column);
  if (column == CsvTable::npos || table_.rows[row][column].empty()) return step_op;
  const std::string& op = table_.rows[row][column];
  try {
    predictor_.columns_of(op);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}, column op: {}", where(row), error.what()));
  }
  return op;
}

// What train calls true and false in its CSV, its flag calls on and off.
std::string flag_value(const std::string& flag, const std::string& cell) {
  if (flag != "ep-overlap") return cell;
  return cell == "true" ? "on" : cell == "false" ? "off" : cell;
}

CommandLine Rows::asked(const std::string& op, std::size_t row) const {
  CommandLine asked = line_;
  const std::set<std::string> taken = predictor_.columns_of(op);
  for (const auto& [column, flag] : options_) {
    const std::string& cell = table_.rows[row][column];
    if (cell.empty()) continue;
    if (taken.count(flag) == 0) {
      throw UsageError(fmt::format("{}, column {}: a row of {} takes no {}: leave the cell empty",
                                   where(row), table_.columns[column], op, flag));
    }
    asked.values[flag] = flag_value(flag, cell);
  }
  return asked;
}

std::string Rows::time_column(std::size_t row) const {
  const auto has = [&](const char* name) {
    const std::size_t column = table_.find(name);
    return column != CsvTable::npos && !table_.rows[row][column].empty();
  };
  if (has(ms_column) && has(us_column)) {
    throw UsageError(
        fmt::format("{}, column measured_us: measured_ms has a time too: give one", where(row)));
  }
  if (has(us_column)) return us_column;
  if (has(ms_column)) return ms_column;
  if (table_.find("step_ms") == CsvTable::npos && has(speed_column)) return speed_column;
  throw UsageError(
      fmt::format("{}, column measured_ms: no measured time: give one, there or in microseconds in "
                  "measured_us, or remove the row",
                  where(row)));
}

// The options of a row that tell rows apart: those with several values, or given in less than half
// of the rows.
std::string Rows::differing(std::size_t row) const {
  std::vector<std::string> words;
  for (const auto& [column, flag] : options_) {
    const std::string& cell = table_.rows[row][column];
    if (cell.empty()) continue;
    std::size_t given = 0;
    bool is_same = true;
    for (const auto& other : table_.rows) {
      if (other[column].empty()) continue;
      ++given;
      is_same = is_same && other[column] == cell;
    }
    if (!is_same || 2 * given < table_.rows.size())
      words.push_back(fmt::format("{} {}", flag, cell));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

CalibrationRow Rows::row(std::size_t row, const CommandLine& options) const {
  CalibrationRow found;
  found.file = table_.name;
  found.line = table_.lines[row];
  found.op = op_of(row);
  found.options = differing(row);
  for (const auto& [flag, value] : options.values)
    found.configuration += fmt::format("{}={}|", flag, value);
  const std::size_t software = table_.find(software_column);
  if (predictor_.takes_software() && software != CsvTable::npos) {
    found.software = table_.rows[row][software];
  }
  try {
    found.prediction = predictor_.predict(found.op, options);
  } catch (const Error& error) {
    throw UsageError(fmt::format("{}: {}", where(row), error.what()));
  }
  found.step.predicted = found.prediction.classes;
  found.time_column = time_column(row);
  const double measured = table_.positive(row, found.time_column);
  if (found.time_column == speed_column) {
    if (!found.prediction.step) {
      throw UsageError(fmt::format("{}, column {}: speeds are of steps of train: give measured_ms",
                                   where(row), speed_column));
    }
    // Both times are of the same tokens.
    found.step.measured_ms =
        found.step.predicted.total() * found.prediction.step->tokens_per_second_per_gpu / measured;
    return found;
  }
  found.step.measured_ms = (found.time_column == us_column ? 1e-3 : 1) * measured;
  return found;
}

void Rows::check_columns(const std::vector<CalibrationRow>& rows) const {
  std::vector<std::string> ignored = {op_column, ms_column, us_column, "note",
                                      "id",      "status",  "reason"};
  if (predictor_.takes_software()) ignored.emplace_back(software_column);
  const std::set<std::string> options = option_names();
  std::vector<std::string> known(options.begin(), options.end());
  known.insert(known.end(), ignored.begin(), ignored.end());
  for (const CalibrationRow& row : rows) {
    const std::vector<std::string> results = predictor_.result_columns(row.prediction);
    ignored.insert(ignored.end(), results.begin(), results.end());
    if (!results.empty()) break;
  }
  for (std::size_t column = 0; column < table_.columns.size(); ++column) {
    const std::string& name = table_.columns[column];
    if (options_.count(column) != 0 ||
        std::find(ignored.begin(), ignored.end(), name) != ignored.end()) {
      continue;
    }
    const bool other_unit = name.rfind("measured", 0) == 0;
    throw UsageError(fmt::format(
        "{}: line 1, column {}: {}", table_.name, name,
        other_unit
            ? std::string("measured times are in milliseconds, in the column measured_ms, or "
                          "in microseconds, in measured_us")
            : fmt::format("no option of {}{}: remove the column, or name it note or id{}",
                          predictor_.commands(), suggestion(option_meant(dashed(name)), known),
                          predictor_.elsewhere(name))));
  }
}

std::vector<CalibrationRow> Rows::predicted() const {
  std::vector<CommandLine> options;
  for (std::size_t index = 0; index < table_.rows.size(); ++index) {
    options.push_back(asked(op_of(index), index));
  }
  predictor_.prepare(options);
  std::vector<CalibrationRow> rows;
  for (std::size_t index = 0; index < table_.rows.size(); ++index) {
    rows.push_back(row(index, options[index]));
    // As soon as it is known what the command adds: an unknown column is the likelier mistake.
    const bool is_last = index + 1 == table_.rows.size();
    const bool is_told = !predictor_.result_columns(rows.front().prediction).empty();
    if (is_last || (index == 0 && is_told)) check_columns(rows);
  }
  return rows;
}

std::optional<std::string> Rows::column_of_other(const std::string& flag) const {
  const std::string& typed = line_.get(flag);
  for (const auto& [column, name] : options_) {
    if (name != flag) continue;
    const auto has_other = [&, at = column](const std::vector<std::string>& row) {
      return !row[at].empty() && row[at] != typed;
    };
    if (std::all_of(table_.rows.begin(), table_.rows.end(), has_other)) {
      return fmt::format("each row of {} has its own in the column {}", table_.name,
                         table_.columns[column]);
    }
  }
  return std::nullopt;
}

// A typed option holds for rows without one of their own: where all have another, it does nothing.
void note_overridden(const std::vector<Rows>& files, const CommandLine& line) {
  for (const auto& [flag, typed] : line.values) {
    std::vector<std::string> columns;
    for (const Rows& file : files) {
      if (const auto column = file.column_of_other(flag)) columns.push_back(*column);
    }
    if (columns.empty() || columns.size() < files.size()) continue;
    note(fmt::format("note: --{} {} has no effect: {}; remove the column to take what is typed",
                     flag, typed, fmt::join(columns, ", ")));
  }
}

void check_machines(const std::vector<CalibrationRow>& rows) {
  const CalibrationRow& first = rows.front();
  for (const CalibrationRow& row : rows) {
    if (row.prediction.machine == first.prediction.machine) continue;
    throw UsageError(fmt::format(
        "{}: a {} of {}, line {}{} is one of {}: calibrate with rows of one machine", row.where(),
        row.op, row.prediction.machine, first.line,
        row.file == first.file ? std::string() : " of " + first.file, first.prediction.machine));
  }
}

void check_units(const std::vector<CalibrationRow>& rows) {
  std::vector<double> logs;
  for (const CalibrationRow& row : rows) {
    logs.push_back(std::log(row.step.measured_ms / row.step.predicted.total()));
  }
  const double middle = median(logs);
  for (std::size_t index = 0; index < rows.size(); ++index) {
    const CalibrationRow& row = rows[index];
    const double ratio = std::exp(logs[index]);
    if (ratio < most_ratio && ratio > 1 / most_ratio) continue;
    const bool alone = std::abs(logs[index] - middle) > std::log(most_ratio);
    throw UsageError(
        fmt::format("{}, column {}: {:g} ms, but {:.4g} ms are predicted{}: is it in {}?",
                    row.where(), row.time_column, row.step.measured_ms, row.step.predicted.total(),
                    alone ? ", and other rows are near their prediction" : "",
                    row.time_column == speed_column ? "tokens per second of one GPU"
                    : row.time_column == us_column  ? ratio < 1 ? "milliseconds" : "nanoseconds"
                    : ratio < 1                     ? "seconds"
                                                    : "microseconds"));
  }
}

// A step in less time than the tensor cores need for its model FLOPs.
void check_peaks(const std::vector<CalibrationRow>& rows) {
  for (const CalibrationRow& row : rows) {
    const model::Precision precision =
        row.prediction.job ? row.prediction.job->states.precision : model::Precision::bf16;
    const double share = row.prediction.mfu * row.step.predicted.total() / row.step.measured_ms /
                         model::most_flops_beside_bf16(precision);
    if (share < 1) continue;
    throw UsageError(fmt::format(
        "{}, column {}: in {:g} ms the model FLOPs of this step are {:.0f} % of what {} can do in "
        "{}: is it the time of a whole step, of this model, global batch and number of GPUs?",
        row.where(), row.time_column, row.step.measured_ms, 100 * share, row.prediction.machine,
        model::name_of(precision)));
  }
}

std::string configuration_key(const CalibrationRow& row) {
  return row.op + "|" + row.configuration;
}

// A measured step did fit: an option that saves memory is missing in its row.
void warn_of_memory(const std::vector<CalibrationRow>& rows) {
  std::set<std::string> seen;
  for (const CalibrationRow& row : rows) {
    const RowPrediction& predicted = row.prediction;
    if (predicted.memory_gib <= predicted.room_gib) continue;
    if (!seen.insert(configuration_key(row)).second) continue;
    note(fmt::format(
        "warning: {}: {:.1f} GiB do not fit the {:.0f} GiB of {}, yet this step was measured: does "
        "the row lack an option, of recomputation, sharding or offloading?",
        row.where(), predicted.memory_gib, predicted.room_gib, predicted.machine));
  }
}

// Rows of one configuration that differ too much to be noise.
void check_repeats(const std::vector<CalibrationRow>& rows) {
  std::map<std::string, const CalibrationRow*> first;
  for (const CalibrationRow& row : rows) {
    const auto [place, fresh] = first.try_emplace(configuration_key(row), &row);
    if (fresh) continue;
    const double one = place->second->step.measured_ms;
    const double other = row.step.measured_ms;
    if (std::max(one, other) < most_repeat_ratio * std::min(one, other)) continue;
    throw UsageError(fmt::format(
        "{}: the same options as line {}{}, but {:g} ms instead of {:g} ms: say in a column what "
        "differs, or keep one of them",
        row.where(), place->second->line,
        row.file == place->second->file ? "" : " of " + place->second->file, other, one));
  }
}

}  // namespace

std::string CalibrationRow::where() const { return fmt::format("{}: line {}", file, line); }

std::vector<CalibrationRow> load_calibration_rows(const std::vector<std::string>& paths,
                                                  const CommandLine& line,
                                                  RowPredictor& predictor) {
  std::vector<Rows> files;
  for (const std::string& path : paths) files.emplace_back(path, line, predictor);
  note_overridden(files, line);
  std::vector<CalibrationRow> rows;
  for (const Rows& file : files) {
    std::vector<CalibrationRow> more = file.predicted();
    std::move(more.begin(), more.end(), std::back_inserter(rows));
  }
  if (rows.empty()) {
    throw UsageError(fmt::format("{}: no measured row: give one for each step that was measured",
                                 fmt::join(paths, ", ")));
  }
  check_machines(rows);
  check_units(rows);
  check_peaks(rows);
  check_repeats(rows);
  warn_of_memory(rows);
  return rows;
}

std::vector<CalibrationRow> configurations_of(const std::vector<CalibrationRow>& rows) {
  std::vector<CalibrationRow> found;
  std::map<std::string, std::size_t> places;
  std::vector<double> logs;  // of each, the sum over its rows
  for (const CalibrationRow& row : rows) {
    const auto [place, fresh] = places.try_emplace(configuration_key(row), found.size());
    if (fresh) {
      found.push_back(row);
      logs.push_back(0);
    } else {
      ++found[place->second].repeats;
    }
    logs[place->second] += std::log(row.step.measured_ms);
  }
  for (std::size_t place = 0; place < found.size(); ++place) {
    if (found[place].repeats == 1) continue;
    found[place].step.measured_ms = std::exp(logs[place] / found[place].repeats);
  }
  return found;
}

std::string counted_rows(const std::vector<CalibrationRow>& configurations) {
  int rows = 0;
  for (const CalibrationRow& row : configurations) rows += row.repeats;
  const std::size_t count = configurations.size();
  if (rows == 1) return "1 row of 1 configuration";
  if (static_cast<std::size_t>(rows) == count) return fmt::format("{} rows", rows);
  return fmt::format("{} rows of {} configuration{}", rows, count, count == 1 ? "" : "s");
}

}  // namespace moesim::tool
