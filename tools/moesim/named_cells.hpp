#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

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
  // Of a column that is there.
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

// As CSV or, for any other format, as JSON; absent where a row has no such column.
inline std::string rows_text(const std::vector<std::string>& columns,
                             const std::vector<NamedCells>& rows, report::Format format) {
  std::vector<report::CellRow> cells;
  for (const NamedCells& row : rows) {
    cells.emplace_back();
    for (const std::string& column : columns) cells.back().push_back(row.cell(column));
  }
  return format == report::Format::csv ? report::to_csv(columns, cells)
                                       : report::to_json_text(columns, cells);
}

}  // namespace moesim::tool
