#include "sim/report/finished_rows.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/formats/csv.hpp"
#include "sim/base/text.hpp"
#include "sim/report/formats.hpp"

namespace moesim::report {
namespace {

using study::Column;
using study::ColumnRole;
using study::ColumnType;

// The cell of a text; nothing where it would not be written as it was read.
std::optional<Cell> cell_of(const std::string& text, ColumnType type) {
  Cell cell;
  if (text.empty()) return cell;
  if (type == ColumnType::boolean) {
    cell = text == "true";
  } else if (type == ColumnType::number) {
    if (const auto whole = parse_number<std::int64_t>(text)) {
      cell = *whole;
    } else if (const auto figure = parse_number<double>(text)) {
      cell = *figure;
    }
  }
  if (type == ColumnType::text || text_of(cell) != text) cell = text;
  if (text_of(cell) != text) return std::nullopt;
  return cell;
}

std::vector<std::string> options_of(const std::vector<std::string>& cells) {
  const std::vector<Column>& columns = study::result_columns();
  std::vector<std::string> options;
  for (std::size_t at = 0; at < columns.size(); ++at) {
    if (columns[at].role == ColumnRole::option) options.push_back(cells[at]);
  }
  return options;
}

CsvTable loaded(const std::string& path) {
  CsvTable table = CsvTable::load(path);
  if (table.columns != study::names_of(study::result_columns())) {
    throw UsageError(fmt::format(
        "--resume: {} is no result of a sweep of this version: choose another --out, or "
        "leave --resume out to replace it",
        path));
  }
  return table;
}

// The options of a point that is computed, as its row has them; nothing of any other.
std::optional<std::vector<std::string>> options_of(const study::SweepPoint& point) {
  if (point.repeats || !point.refusal.empty() || !point.scenario) return std::nullopt;
  std::vector<std::string> cells;
  for (const Cell& cell : study::refused_row(&*point.scenario, point.values, "")) {
    cells.push_back(text_of(cell));
  }
  return options_of(cells);
}

}  // namespace

FinishedRows finished_rows(const std::string& path, const std::vector<study::SweepPoint>& points) {
  const CsvTable table = loaded(path);
  const std::vector<Column>& columns = study::result_columns();
  FinishedRows finished;
  finished.in_file = table.rows.size();
  std::map<std::vector<std::string>, study::Row> known;
  for (const std::vector<std::string>& cells : table.rows) {
    if (cells[0] != "ok") continue;
    study::Row row;
    for (std::size_t at = 0; at < columns.size(); ++at) {
      const auto cell = cell_of(cells[at], columns[at].type);
      if (cell) row.push_back(*cell);
    }
    if (row.size() == columns.size()) known.emplace(options_of(cells), std::move(row));
  }
  for (std::size_t index = 0; index < points.size(); ++index) {
    const auto options = options_of(points[index]);
    const auto found = options ? known.find(*options) : known.end();
    if (found != known.end()) finished.rows.emplace(index, found->second);
  }
  return finished;
}

}  // namespace moesim::report
