#include "sim/report/route_table.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/report/slot_share.hpp"

namespace moesim::report {
namespace {

using study::Column;
using study::ColumnRole;
using study::ColumnType;

bool any_has(const std::vector<CellRow>& rows, std::size_t column) {
  return std::any_of(rows.begin(), rows.end(),
                     [&](const CellRow& row) { return !is_absent(row[column]); });
}

bool differs(const std::vector<CellRow>& rows, std::size_t column) {
  Cell first;
  for (const CellRow& row : rows) {
    if (is_absent(row[column])) continue;  // does not apply
    if (is_absent(first)) first = row[column];
    if (row[column] != first) return true;
  }
  return false;
}

bool is_shown(const std::vector<Column>& columns, const std::vector<CellRow>& rows,
              std::size_t column) {
  const std::string& name = columns[column].name;
  if (!any_has(rows, column)) return false;
  // What a factor means is not to be guessed: 1 of the paper's is half of a library's at k = 2.
  if (name == "capacity_convention") return true;
  if (name == "router" || name == "capacity_factor" || name == "capacity") return true;
  if (columns[column].role == ColumnRole::loss) return true;
  // The name of a router says its k.
  return columns[column].role == ColumnRole::option && name != "top_k" && differs(rows, column);
}

std::string heading(const Column& column) {
  if (column.name == "residual_loss") return "token loss %";
  if (column.role != ColumnRole::loss) return column.name;
  std::string words = column.name;
  std::replace(words.begin(), words.end(), '_', ' ');
  return column.unit == "share" ? words + " %" : words;
}

const Cell& cell_in(const std::vector<Column>& columns, const CellRow& row, const char* name) {
  static const Cell absent;
  for (std::size_t column = 0; column < columns.size(); ++column) {
    if (columns[column].name == name) return row[column];
  }
  return absent;
}

std::string cell_text(const Column& column, const Cell& cell) {
  if (is_absent(cell)) return "";
  if (column.role != ColumnRole::loss) return text_of(cell);
  return column.unit == "share" ? fmt::format("{:.2f}", number_in(cell) * 100)
                                : fmt::format("{:.5g}", number_in(cell));
}

}  // namespace

std::string route_table(const std::vector<Column>& columns, const std::vector<CellRow>& rows) {
  std::vector<std::vector<std::string>> lines(rows.size() + 1);
  std::vector<bool> right;
  SlotShares slots;
  std::vector<bool> with_slots;
  for (const CellRow& row : rows) {
    const Cell& padding = cell_in(columns, row, "padding");
    const Cell& capacity = cell_in(columns, row, "capacity");
    slots.add(padding, capacity);
    with_slots.push_back(SlotShares::has_slots(padding, capacity));
  }
  for (std::size_t column = 0; column < columns.size(); ++column) {
    const bool of_slots = columns[column].name == "padded";
    if (!is_shown(columns, rows, column) || (of_slots && !slots.any())) continue;
    lines[0].push_back(of_slots ? slots.heading() : heading(columns[column]));
    right.push_back(columns[column].type == ColumnType::number);
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const bool blank = of_slots && !with_slots[row];
      lines[row + 1].push_back(blank ? "" : cell_text(columns[column], rows[row][column]));
    }
  }
  return align(lines, right);
}

}  // namespace moesim::report
