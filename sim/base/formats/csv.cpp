#include "sim/base/formats/csv.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/text.hpp"

namespace moesim {
namespace {

class Reader {
 public:
  Reader(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  bool at_end() const { return at_ >= text_.size(); }
  std::size_t line() const { return line_; }

  std::vector<std::string> record() {
    std::vector<std::string> cells(1);
    while (!at_end()) {
      const char character = text_[at_++];
      if (character == '"' && cells.back().empty()) {
        quoted(cells.back());
      } else if (character == ',') {
        cells.emplace_back();
      } else if (character == '\n') {
        ++line_;
        break;
      } else if (character != '\r') {
        cells.back().push_back(character);
      }
    }
    return cells;
  }

 private:
  void quoted(std::string& cell) {
    const std::size_t start = line_;
    while (!at_end()) {
      const char character = text_[at_++];
      if (character == '\n') ++line_;
      if (character != '"') {
        cell.push_back(character);
      } else if (!at_end() && text_[at_] == '"') {
        cell.push_back(text_[at_++]);
      } else {
        return;
      }
    }
    throw UsageError(fmt::format("{}: line {}: a quoted field is never closed", name_, start));
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t at_ = 0;
  std::size_t line_ = 1;
};

// What a header has: of many columns the first and the last, where those are that a user added.
std::string columns_text(const std::vector<std::string>& columns) {
  if (columns.size() == 1 && columns[0].find_first_of(";\t") != std::string::npos) {
    return fmt::format("it is separated by {}: separate by commas",
                       columns[0].find(';') == std::string::npos ? "tabs" : "semicolons");
  }
  constexpr std::size_t most = 12;
  constexpr std::size_t last = 4;
  if (columns.size() <= most) return fmt::format("the columns are {}", fmt::join(columns, ", "));
  const auto from_last = columns.end() - static_cast<std::ptrdiff_t>(last);
  return fmt::format("the columns are {}, {} more, {}",
                     fmt::join(columns.begin(), columns.begin() + (most - last), ", "),
                     columns.size() - most, fmt::join(from_last, columns.end(), ", "));
}

}  // namespace

CsvTable CsvTable::load(const std::string& path) { return parse(read_file(path), path); }

CsvTable CsvTable::parse(std::string_view text, const std::string& name) {
  CsvTable table;
  table.name = name;
  constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";  // spreadsheets write one
  if (text.substr(0, byte_order_mark.size()) == byte_order_mark) {
    text.remove_prefix(byte_order_mark.size());
  }
  Reader reader(text, name);
  if (reader.at_end()) throw UsageError(fmt::format("{}: line 1: no header line", name));
  table.columns = reader.record();
  while (!reader.at_end()) {
    const std::size_t line = reader.line();
    std::vector<std::string> cells = reader.record();
    if (cells.size() == 1 && cells[0].empty()) continue;
    if (cells.size() != table.columns.size()) {
      throw UsageError(fmt::format("{}: line {}: {} fields, but the header has {}", name, line,
                                   cells.size(), table.columns.size()));
    }
    table.rows.push_back(std::move(cells));
    table.lines.push_back(line);
  }
  return table;
}

std::size_t CsvTable::find(const std::string& column) const {
  const auto found = std::find(columns.begin(), columns.end(), column);
  return found == columns.end() ? npos : static_cast<std::size_t>(found - columns.begin());
}

std::size_t CsvTable::column(const std::string& name_of_column) const {
  const std::size_t found = find(name_of_column);
  if (found != npos) return found;
  throw UsageError(
      fmt::format("{}: line 1: no column '{}'; {}", name, name_of_column, columns_text(columns)));
}

std::int64_t CsvTable::whole(std::size_t row, std::size_t column, std::int64_t most) const {
  const std::string& cell = rows[row][column];
  const std::optional<std::int64_t> value = parse_number<std::int64_t>(cell);
  if (value && *value >= 0 && *value <= most) return *value;
  throw UsageError(fmt::format("{}, line {}, column {}: '{}' is not a whole number from 0 to {}",
                               name, lines[row], columns[column], cell, most));
}

double CsvTable::number(std::size_t row, const std::string& name_of_column) const {
  const std::string& cell = text(row, name_of_column);
  const std::optional<double> value = parse_number<double>(cell);
  if (value && std::isfinite(*value)) return *value;
  throw UsageError(fmt::format("{}, line {}, column {}: '{}' is not a number", name, lines[row],
                               name_of_column, cell));
}

double CsvTable::positive(std::size_t row, const std::string& name_of_column) const {
  const double value = number(row, name_of_column);
  if (value > 0) return value;
  throw UsageError(fmt::format("{}, line {}, column {}: '{}' is not above 0", name, lines[row],
                               name_of_column, text(row, name_of_column)));
}

std::string csv_line(const std::vector<std::string>& cells) {
  std::string line;
  for (const std::string& cell : cells) {
    if (&cell != &cells.front()) line += ',';
    if (cell.find_first_of(",\"\n\r") == std::string::npos) {
      line += cell;
      continue;
    }
    line += '"';
    for (const char character : cell) {
      if (character == '"') line += '"';
      line += character;
    }
    line += '"';
  }
  return line + '\n';
}

}  // namespace moesim
