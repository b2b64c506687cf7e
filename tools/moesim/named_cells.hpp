#pragma once

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
};

}  // namespace moesim::tool
