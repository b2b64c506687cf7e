#include "sim/report/formats.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sim/base/csv.hpp"
#include "sim/base/error.hpp"
#include "sim/base/shipped.hpp"

namespace moesim::report {
namespace {

// Characters, not bytes: continuation bytes of UTF-8 take no room.
std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char character) {
    return (static_cast<unsigned char>(character) & 0xC0) != 0x80;
  }));
}

nlohmann::ordered_json cell_value(const Column& column, const std::string& cell) {
  if (cell.empty() && column.kind != ColumnKind::text) return nullptr;
  if (column.kind == ColumnKind::boolean) return cell == "true";
  if (column.kind == ColumnKind::number) {
    // A cell of a refused scenario may be anything that was typed.
    auto number = nlohmann::ordered_json::parse(cell, nullptr, false);
    if (number.is_number()) return number;
  }
  if (cell.empty()) return nullptr;
  return cell;
}

}  // namespace

Format parse_format(const std::string& text) {
  if (text == "table") return Format::table;
  if (text == "csv") return Format::csv;
  if (text == "json") return Format::json;
  throw UsageError(fmt::format("--format: unknown format '{}'{}; choose from table, csv, json",
                               text, suggestion(text, {"table", "csv", "json"})));
}

std::string to_csv(const std::vector<Column>& columns,
                   const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::string> names;
  for (const Column& column : columns) names.push_back(column.name);
  std::string text = csv_line(names);
  for (const std::vector<std::string>& row : rows) text += csv_line(row);
  return text;
}

nlohmann::ordered_json to_json(const std::vector<Column>& columns,
                               const std::vector<std::string>& row) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (std::size_t index = 0; index < columns.size(); ++index) {
    object[columns[index].name] = cell_value(columns[index], row[index]);
  }
  return object;
}

std::string to_json_text(const std::vector<Column>& columns,
                         const std::vector<std::vector<std::string>>& rows) {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const std::vector<std::string>& row : rows) array.push_back(to_json(columns, row));
  return array.dump(2) + "\n";
}

std::string align(const std::vector<std::vector<std::string>>& lines,
                  const std::vector<bool>& right) {
  std::vector<std::size_t> widths(right.size(), 0);
  for (const std::vector<std::string>& line : lines) {
    for (std::size_t column = 0; column < line.size(); ++column) {
      widths[column] = std::max(widths[column], width(line[column]));
    }
  }
  std::string text;
  for (const std::vector<std::string>& line : lines) {
    std::string out;
    for (std::size_t column = 0; column < line.size(); ++column) {
      const std::string room(widths[column] - width(line[column]), ' ');
      out += column == 0 ? "" : "  ";
      out += right[column] ? room + line[column] : line[column] + room;
    }
    out.erase(out.find_last_not_of(' ') + 1);
    text += out + "\n";
  }
  return text;
}

}  // namespace moesim::report
