#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/moesim/rows/named_cells.hpp"

namespace moesim::tool {

// One step of several.
struct TrainPoint {
  std::optional<NamedCells> row;
  std::string refusal;  // where there is no row
  bool fits = true;
  bool is_tight = false;  // fits, but leaves less than libraries need
  std::string software;   // whose errors the band has
  bool done = false;

  // Absent where there is no row, or no such column.
  Cell cell(const std::string& column) const { return row ? row->cell(column) : Cell(); }
  std::string text(const std::string& column) const;
  // 0 where there is none.
  double figure(const std::string& column) const;
};

// uncertainty::part_times() of a row.
std::vector<double> part_times(const TrainPoint& point);

}  // namespace moesim::tool
