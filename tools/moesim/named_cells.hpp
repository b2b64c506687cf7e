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

}  // namespace moesim::tool
