#include "tools/moesim/bands/calibrate_rows.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "sim/base/csv.hpp"
#include "sim/base/error.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/statistics.hpp"
#include "sim/training/training_step.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/train/train_report.hpp"
#include "tools/moesim/train/train_request.hpp"

namespace moesim::tool {
namespace {

constexpr const char* measured_column = "measured_ms";
// Beyond these a measured time is of another unit or another step: published steps lie within a
// factor of 9 of their prediction.
constexpr double most_ratio = 30;
// The same configuration measured twice.
constexpr double most_repeat_ratio = 1.3;

std::string dashed(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

std::string where(const CsvTable& table, std::size_t row) {
  return fmt::format("{}: line {}", table.name, table.lines[row]);
}

// The columns that are options of `train`: column to flag.
std::map<std::size_t, std::string> option_columns(const CsvTable& table) {
  std::set<std::string> flags;
  for (const Flag& flag : train_flags()) flags.insert(flag.name);
  std::map<std::size_t, std::string> found;
  std::set<std::string> seen;
  for (std::size_t column = 0; column < table.columns.size(); ++column) {
    const std::string name = dashed(table.columns[column]);
    if (flags.count(name) == 0) continue;
    if (!seen.insert(name).second) {
      throw UsageError(fmt::format("{}: line 1, column {}: a second one of it", table.name, name));
    }
    found[column] = name;
  }
  return found;
}

void check_columns(const CsvTable& table, const std::map<std::size_t, std::string>& options,
                   const std::vector<std::string>& results) {
  std::vector<std::string> known = {measured_column, "note", "id"};
  for (const Flag& flag : train_flags()) known.push_back(flag.name);
  for (std::size_t column = 0; column < table.columns.size(); ++column) {
    const std::string& name = table.columns[column];
    if (options.count(column) != 0 || name == measured_column || name == "note" || name == "id" ||
        std::find(results.begin(), results.end(), name) != results.end()) {
      continue;
    }
    const bool other_unit = name.rfind("measured", 0) == 0;
    throw UsageError(fmt::format(
        "{}: line 1, column {}: {}{}", table.name, name,
        other_unit ? "measured steps are in milliseconds, in the column measured_ms"
                   : "train knows no such option",
        other_unit
            ? ""
            : suggestion(dashed(name), known) + ": remove the column, or name it note or id"));
  }
}

// What train calls true and false in its CSV, its flag calls on and off.
std::string flag_value(const std::string& flag, const std::string& cell) {
  if (flag != "ep-overlap") return cell;
  return cell == "true" ? "on" : cell == "false" ? "off" : cell;
}

void check_units(const CsvTable& table, const std::vector<CalibrationRow>& rows) {
  std::vector<double> logs;
  for (const CalibrationRow& row : rows) {
    logs.push_back(std::log(row.step.measured_ms / row.step.predicted.total()));
  }
  const double middle = median(logs);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const double ratio = std::exp(logs[row]);
    if (ratio < most_ratio && ratio > 1 / most_ratio) continue;
    const bool alone = std::abs(logs[row] - middle) > std::log(most_ratio);
    throw UsageError(
        fmt::format("{}, column measured_ms: {:g} ms, but {:.4g} ms are predicted{}: is it in {}?",
                    where(table, row), rows[row].step.measured_ms, rows[row].step.predicted.total(),
                    alone ? ", and other rows are near their prediction" : "",
                    ratio < 1 ? "seconds" : "microseconds"));
  }
}

void check_repeats(const CsvTable& table, const std::vector<CalibrationRow>& rows,
                   const std::vector<std::string>& configurations) {
  std::map<std::string, std::size_t> first;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const auto [place, fresh] = first.try_emplace(configurations[row], row);
    if (fresh) continue;
    const double one = rows[place->second].step.measured_ms;
    const double other = rows[row].step.measured_ms;
    if (std::max(one, other) < most_repeat_ratio * std::min(one, other)) continue;
    throw UsageError(fmt::format(
        "{}: the same options as line {}, but {:g} ms instead of {:g} ms: say in a column what "
        "differs, or keep one of them",
        where(table, row), table.lines[place->second], other, one));
  }
}

// Of options that are not the same in every row.
std::string differing(const CsvTable& table, const std::map<std::size_t, std::string>& options,
                      std::size_t row) {
  std::vector<std::string> words;
  for (const auto& [column, flag] : options) {
    bool same = true;
    for (const auto& other : table.rows) same = same && other[column] == table.rows[row][column];
    if (!same && !table.rows[row][column].empty()) {
      words.push_back(flag + " " + table.rows[row][column]);
    }
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace

std::vector<CalibrationRow> load_calibration_rows(const std::string& path,
                                                  const CommandLine& line) {
  const CsvTable table = CsvTable::load(path);
  table.column(measured_column);
  const std::map<std::size_t, std::string> options = option_columns(table);
  std::vector<CalibrationRow> rows;
  std::vector<std::string> configurations;
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    CommandLine asked = line;
    std::string configuration;
    for (const auto& [column, flag] : options) {
      const std::string& cell = table.rows[row][column];
      configuration += cell + "|";
      if (!cell.empty()) asked.values[flag] = flag_value(flag, cell);
    }
    CalibrationRow found;
    found.line = table.lines[row];
    found.options = differing(table, options, row);
    try {
      found.job = requested_job(asked);
      const training::TrainingStep step = training::training_step(found.job);
      found.step.predicted = uncertainty::classes_of(step);
      if (row == 0) {
        TrainBand band;
        band.subject = subject_of(found.job, "");
        band.band = shipped_errors().band(band.subject);
        band.terms.emplace_back();
        std::vector<std::string> results = training_columns(found.job, step);
        for (const auto& [name, cell] : band_cells(band, step)) results.push_back(name);
        check_columns(table, options, results);
      }
    } catch (const Error& error) {
      const std::string text = error.what();
      if (text.rfind(path, 0) == 0) throw;
      throw UsageError(fmt::format("{}: {}", where(table, row), text));
    }
    found.step.measured_ms = table.positive(row, measured_column);
    const std::string& machine = found.job.profile->device().name;
    if (!rows.empty() && machine != rows.front().job.profile->device().name) {
      throw UsageError(fmt::format(
          "{}: a step of {}, line {} is one of {}: a file has steps of one machine",
          where(table, row), machine, rows.front().line, rows.front().job.profile->device().name));
    }
    rows.push_back(std::move(found));
    configurations.push_back(configuration);
  }
  if (rows.size() < 2) {
    throw UsageError(
        fmt::format("{}: {} measured step{}: give at least two, so that each can be predicted "
                    "from the others; three of different layouts are better",
                    path, rows.size(), rows.size() == 1 ? "" : "s"));
  }
  check_units(table, rows);
  check_repeats(table, rows, configurations);
  return rows;
}

}  // namespace moesim::tool
