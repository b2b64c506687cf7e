#include "sim/report/route_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "sim/report/slot_share.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/study/sweep/counted_loss.hpp"

namespace moesim::report {
namespace {

using study::Column;
using study::ColumnRole;
using study::ColumnType;

const Cell& cell_in(const std::vector<Column>& columns, const CellRow& row, const char* name) {
  static const Cell absent;
  for (std::size_t column = 0; column < columns.size(); ++column) {
    if (columns[column].name == name) return row[column];
  }
  return absent;
}

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

// Whether the name of some router does not say its k.
bool hides_k(const std::vector<Column>& columns, const std::vector<CellRow>& rows) {
  for (std::size_t column = 0; column < columns.size(); ++column) {
    if (columns[column].name != "router") continue;
    return std::any_of(rows.begin(), rows.end(), [&](const CellRow& row) {
      if (is_absent(row[column])) return false;
      const std::string name = text_of(row[column]);
      return routing::parse_router(name, 0, 1).top_k != routing::parse_router(name, 0, 2).top_k;
    });
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
  if (name == "top_k") return hides_k(columns, rows);
  return columns[column].role == ColumnRole::option && differs(rows, column);
}

// Whether what a router passes over is no token loss in some row.
bool has_own_count(const std::vector<Column>& columns, const std::vector<CellRow>& rows) {
  return std::any_of(rows.begin(), rows.end(), [&](const CellRow& row) {
    return number_in(cell_in(columns, row, study::counted_loss_column)) <
           number_in(cell_in(columns, row, "residual_loss"));
  });
}

std::string heading(const Column& column, bool has_own_count) {
  if (column.name == (has_own_count ? study::counted_loss_column : "residual_loss")) {
    return "token loss %";
  }
  if (column.role != ColumnRole::loss) return column.name;
  std::string words = column.name;
  std::replace(words.begin(), words.end(), '_', ' ');
  return column.unit == "share" ? words + " %" : words;
}

std::string cell_text(const Column& column, const Cell& cell) {
  if (is_absent(cell)) return "";
  if (column.role != ColumnRole::loss) return text_of(cell);
  return column.unit == "share" ? fmt::format("{:.2f}", number_in(cell) * 100)
                                : fmt::format("{:.5g}", number_in(cell));
}

// "1.20 to 1.50": where the token loss of one step lies, in percent.
std::string band_text(const std::vector<Column>& columns, const CellRow& row) {
  const Cell& low = cell_in(columns, row, "residual_loss_p05");
  const Cell& high = cell_in(columns, row, "residual_loss_p95");
  if (is_absent(low) || is_absent(high)) return "";
  return fmt::format("{:.2f} to {:.2f}", number_in(low) * 100, number_in(high) * 100);
}

// Losses that counts, or choices without probabilities, do not tell by themselves.
bool is_of_weights(const Column& column) {
  static constexpr const char* names[] = {"partial",
                                          "lost_mass",
                                          "unrouted",
                                          "residual_loss",
                                          "fill_failed",
                                          "failed_attempted",
                                          study::counted_loss_column};
  return std::find(std::begin(names), std::end(names), column.name) != std::end(names);
}

// Under the table, what the mark says.
std::string mark_text(const std::vector<Column>& columns, const std::vector<CellRow>& rows) {
  std::set<std::string> bases;
  for (const CellRow& row : rows) {
    const Cell& basis = cell_in(columns, row, loss_basis_column);
    if (!is_absent(basis)) bases.insert(text_of(basis));
  }
  return bases.empty() ? "" : fmt::format("~ estimated from {}\n", fmt::join(bases, " or "));
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
  const bool is_own = has_own_count(columns, rows);
  const bool is_banded = std::any_of(rows.begin(), rows.end(), [&](const CellRow& row) {
    return !band_text(columns, row).empty();
  });
  for (std::size_t column = 0; column < columns.size(); ++column) {
    const bool of_slots = columns[column].name == "padded";
    if (!is_shown(columns, rows, column) || (of_slots && !slots.any())) continue;
    if (columns[column].name == study::counted_loss_column && !is_own) continue;
    lines[0].push_back(of_slots ? slots.heading() : heading(columns[column], is_own));
    right.push_back(columns[column].type == ColumnType::number);
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const bool blank = of_slots && !with_slots[row];
      std::string text = blank ? "" : cell_text(columns[column], rows[row][column]);
      const bool is_marked = !text.empty() && is_of_weights(columns[column]) &&
                             !is_absent(cell_in(columns, rows[row], loss_basis_column));
      lines[row + 1].push_back(is_marked ? "~" + text : text);
    }
    if (columns[column].name != "residual_loss" || !is_banded) continue;
    lines[0].emplace_back("of one step, p05 to p95");
    right.push_back(true);
    for (std::size_t row = 0; row < rows.size(); ++row) {
      lines[row + 1].push_back(band_text(columns, rows[row]));
    }
  }
  return align(lines, right) + mark_text(columns, rows);
}

}  // namespace moesim::report
