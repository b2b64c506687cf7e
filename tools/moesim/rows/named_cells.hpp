#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/base/formats/json_text.hpp"
#include "sim/report/formats.hpp"

namespace moesim::tool {

// A row of a result with the names of its columns.
struct NamedCells {
  std::vector<std::string> names;
  report::CellRow cells;
  void add(std::string name, Cell cell) {
    names.push_back(std::move(name));
    cells.push_back(std::move(cell));
  }
  // Precondition: the column is there.
  void set(const std::string& name, Cell cell) {
    const auto at = std::find(names.begin(), names.end(), name);
    cells[static_cast<std::size_t>(at - names.begin())] = std::move(cell);
  }
  bool has(const std::string& name) const {
    return std::find(names.begin(), names.end(), name) != names.end();
  }
  // Absent where there is no such column.
  Cell cell(const std::string& name) const {
    const auto at = std::find(names.begin(), names.end(), name);
    return at == names.end() ? Cell() : cells[static_cast<std::size_t>(at - names.begin())];
  }
};

// Columns of rows that differ in some: what `columns` does not have is added behind.
inline void add_columns(const NamedCells& row, std::vector<std::string>& columns) {
  for (const std::string& name : row.names) {
    if (std::find(columns.begin(), columns.end(), name) == columns.end()) columns.push_back(name);
  }
}

// A column whose text is a list; "": none.
inline constexpr const char* not_measured_column = "not_measured";
// Of several such items the deviation that each adds, a list of numbers.
inline constexpr const char* unmeasured_each_column = "not_measured_deviations";
inline constexpr std::string_view list_separator = "; ";

inline std::vector<std::string> listed(const std::string& text) {
  std::vector<std::string> items;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(list_separator, begin), text.size());
    items.push_back(text.substr(begin, end - begin));
    begin = end + list_separator.size();
  }
  return items;
}

// The row as JSON, where a list is one.
inline nlohmann::ordered_json json_row(const std::vector<std::string>& columns,
                                       const report::CellRow& cells) {
  nlohmann::ordered_json object = report::to_json(columns, cells);
  const auto text_in = [&](const char* column) -> const std::string* {
    const auto at = std::find(columns.begin(), columns.end(), column);
    if (at == columns.end()) return nullptr;
    return std::get_if<std::string>(&cells[static_cast<std::size_t>(at - columns.begin())]);
  };
  const std::string* const text = text_in(not_measured_column);
  // A file that was resumed does not tell an empty text from none: a predicted row has a band.
  const bool has_band = object.contains("band_level") && !object["band_level"].is_null();
  if (object.contains(not_measured_column) && (text != nullptr || has_band)) {
    object[not_measured_column] = listed(text == nullptr ? "" : *text);
  }
  if (const std::string* const numbers = text_in(unmeasured_each_column)) {
    auto list = nlohmann::ordered_json::array();
    for (const std::string& number : listed(*numbers)) {
      list.push_back(report::json_figure(std::strtod(number.c_str(), nullptr)));
    }
    object[unmeasured_each_column] = std::move(list);
  }
  return object;
}

inline std::string rows_json(const std::vector<std::string>& columns,
                             const std::vector<report::CellRow>& rows) {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const report::CellRow& row : rows) array.push_back(json_row(columns, row));
  return json_text(array, 2) + "\n";
}

// The rows as CSV or, for any other format, as JSON; a cell is absent where a row has no such
// column.
inline std::string rows_text(const std::vector<std::string>& columns,
                             const std::vector<NamedCells>& rows, report::Format format) {
  std::vector<report::CellRow> cells;
  for (const NamedCells& row : rows) {
    cells.emplace_back();
    for (const std::string& column : columns) cells.back().push_back(row.cell(column));
  }
  return format == report::Format::csv ? report::to_csv(columns, cells) : rows_json(columns, cells);
}

}  // namespace moesim::tool
