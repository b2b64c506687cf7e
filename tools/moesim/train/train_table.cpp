#include "tools/moesim/train/train_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "sim/report/slot_share.hpp"
#include "sim/study/search/counted_loss.hpp"
#include "sim/study/search/memory_share.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/part_columns.hpp"
#include "tools/moesim/train/train_ratio.hpp"
#include "tools/moesim/train/train_report.hpp"

namespace moesim::tool {
namespace {

std::string number(const TrainPoint& point, const char* column, double scale, int digits) {
  const Cell cell = point.cell(column);
  const double* const value = std::get_if<double>(&cell);
  return value == nullptr ? "" : fmt::format("{:.{}f}", scale * *value, digits);
}

// The columns of all rows: those of the first, then what later ones have besides.
std::vector<std::string> columns_of(const std::vector<TrainPoint>& points, const TrainGrid& grid) {
  std::vector<std::string> columns = {"status", "reason"};
  for (const TrainPoint& point : points) {
    if (point.row) add_columns(*point.row, columns);
  }
  for (const Flag& flag : grid.flags) {  // where every point is refused
    const std::string column = column_of(flag);
    if (std::find(columns.begin(), columns.end(), column) == columns.end()) {
      columns.push_back(column);
    }
  }
  return columns;
}

// Of a refused point the values that were typed are all there is to say.
std::vector<report::CellRow> cells_of(const std::vector<TrainPoint>& points, const TrainGrid& grid,
                                      const std::vector<std::string>& columns) {
  std::vector<report::CellRow> rows;
  for (std::size_t at = 0; at < points.size(); ++at) {
    const TrainPoint& point = points[at];
    report::CellRow row = {std::string(point.row ? "ok" : "refused"),
                           point.row ? Cell() : Cell(point.refusal)};
    for (std::size_t column = row.size(); column < columns.size(); ++column) {
      row.push_back(point.cell(columns[column]));
    }
    for (std::size_t flag = 0; !point.row && flag < grid.flags.size(); ++flag) {
      const auto column = std::find(columns.begin(), columns.end(), column_of(grid.flags[flag]));
      row[static_cast<std::size_t>(column - columns.begin())] = grid.values[at][flag];
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

bool waits_for_host(const TrainPoint& point) {
  static const std::string column =
      part_column(name_in(training::part_names, training::Part::host));
  return host_limits(point.figure(column), point.figure("step_ms"));
}

// What is to know of a row: "TIGHT, host limits".
std::string remark(const TrainPoint& point) {
  if (!point.row) return "refused";
  std::vector<std::string> words;
  if (!point.fits || point.is_tight) words.emplace_back(point.fits ? "TIGHT" : "does not fit");
  if (waits_for_host(point)) words.emplace_back("host limits");
  return fmt::format("{}", fmt::join(words, ", "));
}

// Under the table, where rows are tight.
std::string tight_text(const std::vector<TrainPoint>& points) {
  const bool any = std::any_of(points.begin(), points.end(), [](const TrainPoint& point) {
    return point.row && point.fits && point.is_tight;
  });
  return any ? fmt::format("TIGHT: more than {:.0f} % of a GPU's memory; libraries need some too\n",
                           100 * study::usual_memory_share)
             : "";
}

// Under the table, where rows wait for the host: nothing else tells why they take the same time.
std::string host_text(const std::vector<TrainPoint>& points) {
  const auto count = std::count_if(points.begin(), points.end(), waits_for_host);
  if (count == 0) return "";
  const auto steps = std::count_if(points.begin(), points.end(),
                                   [](const TrainPoint& point) { return point.row.has_value(); });
  return fmt::format(
      "host limits {} of {} steps: what the GPU does faster does not shorten them; try\n  {}\n",
      count, steps, host_remedy);
}

// Under the table, where rows lose nothing by the model's own router, what it passes over.
std::string not_chosen_text(const std::vector<TrainPoint>& points) {
  std::vector<double> shares;
  for (const TrainPoint& point : points) {
    const double residual = point.figure("residual_loss");
    if (point.figure("counted_loss") < residual) shares.push_back(residual);
  }
  if (shares.empty()) return "";
  const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
  const std::string text = fmt::format("{:.2f}", 100 * *least);
  const std::string last = fmt::format("{:.2f}", 100 * *most);
  return fmt::format(
      "token loss 0.00: no route is dropped; not counted: {}{} % of the weight of a token's k best "
      "experts,\n  {} (column residual_loss)\n",
      text, text == last ? "" : " to " + last, study::not_chosen);
}

// "80 %": the level of the bands, the same for all rows of one software.
std::string band_level(const std::vector<TrainPoint>& points) {
  std::string text;
  for (const TrainPoint& point : points) {
    if (!point.row) continue;
    const std::string level = number(point, "band_level", 100, 0) + " %";
    if (text.empty()) text = level;
    if (text != level) return "widest band";
  }
  return text;
}

// As typed; empty where it does not apply.
std::string shown_value(const TrainPoint& point, const Flag& flag, const std::string& typed) {
  if (!point.row) return typed;
  return point.row->has(column_of(flag)) && is_absent(point.cell(column_of(flag))) ? "" : typed;
}

struct CostColumn {
  const char* name;
  const char* heading;
  int digits;
};

// Those that were asked for.
std::vector<CostColumn> cost_columns(const std::vector<TrainPoint>& points) {
  std::vector<CostColumn> columns = {{"run_days", "days", 1},
                                     {"run_cost", "cost", 0},
                                     {"cost_per_1e12_tokens", "cost/1e12 tokens", 0}};
  std::erase_if(columns, [&](const CostColumn& column) {
    return std::all_of(points.begin(), points.end(), [&](const TrainPoint& point) {
      return number(point, column.name, 1, 0).empty();
    });
  });
  return columns;
}

std::string table_of(const std::vector<TrainPoint>& points, const TrainGrid& grid) {
  std::vector<std::string> heading;
  for (const Flag& flag : grid.flags) heading.push_back(column_of(flag));
  const bool drawn = std::any_of(points.begin(), points.end(), [](const TrainPoint& point) {
    return !number(point, "counted_loss", 1, 0).empty();
  });
  const std::string level = band_level(points);
  heading.insert(heading.end(), {"step ms", fmt::format("if measured, {}", level), "tokens/s/GPU",
                                 "MFU %", "memory GiB"});
  const std::vector<CostColumn> costs = cost_columns(points);
  for (const CostColumn& column : costs) heading.emplace_back(column.heading);
  report::SlotShares slots;
  for (const TrainPoint& point : points) {
    slots.add(point.cell("padding"), point.cell("capacity"));
  }
  if (drawn) {
    heading.emplace_back("token loss %");
    if (slots.any()) heading.push_back(slots.heading());
    heading.emplace_back("imbalance");
  }
  const bool compared = std::any_of(points.begin(), points.end(), [](const TrainPoint& point) {
    return !number(point, "speed_over_baseline", 1, 0).empty();
  });
  if (compared) heading.insert(heading.end(), {"speed over baseline", "more than noise at"});
  heading.emplace_back();
  std::vector<std::vector<std::string>> lines = {heading};
  for (std::size_t at = 0; at < points.size(); ++at) {
    const TrainPoint& point = points[at];
    std::vector<std::string> line;
    for (std::size_t flag = 0; flag < grid.flags.size(); ++flag) {
      line.push_back(shown_value(point, grid.flags[flag], grid.values[at][flag]));
    }
    line.push_back(number(point, "step_ms", 1, 1));
    line.push_back(point.row ? fmt::format("{} to {}", number(point, "step_ms_low", 1, 0),
                                           number(point, "step_ms_high", 1, 0))
                             : "");
    line.push_back(number(point, "tokens_per_s_per_gpu", 1, 0));
    line.push_back(number(point, "mfu", 100, 1));
    line.push_back(number(point, "memory_gib", 1, 1));
    for (const CostColumn& column : costs) {
      line.push_back(number(point, column.name, 1, column.digits));
    }
    if (drawn) {
      line.push_back(number(point, "counted_loss", 100, 2));
      const bool has_slots =
          report::SlotShares::has_slots(point.cell("padding"), point.cell("capacity"));
      if (slots.any()) line.push_back(has_slots ? number(point, "padded", 100, 2) : "");
      line.push_back(number(point, "imbalance", 1, 3));
    }
    if (compared) {
      line.push_back(number(point, "speed_over_baseline", 1, 3));
      const std::string surety = number(point, "beyond_noise_level", 100, 0);
      line.push_back(!point.row ? "" : surety.empty() ? "within noise" : surety + " %");
    }
    line.push_back(remark(point));
    lines.push_back(std::move(line));
  }
  std::vector<bool> right(heading.size(), true);
  std::fill_n(right.begin(), grid.flags.size(), false);
  right.back() = false;
  return report::align(lines, right);
}

// Of rows that were predicted, by their numbers.
std::string unmeasured_text(const std::vector<TrainPoint>& rows) {
  std::vector<NotMeasured> steps;
  for (std::size_t at = 0; at < rows.size(); ++at) {
    if (!rows[at].row) continue;
    const Cell cell = rows[at].row->cell(not_measured_column);
    const auto* text = std::get_if<std::string>(&cell);
    steps.push_back({fmt::format("row {}", at + 1),
                     text == nullptr ? std::vector<std::string>() : listed(*text),
                     names_own_software(rows[at].text("software"))});
  }
  return not_measured_lines(steps);
}

}  // namespace

std::string table_text(const CommandLine& line, const std::vector<TrainPoint>& rows,
                       const TrainGrid& grid, report::Format format) {
  if (format == report::Format::table) {
    return table_of(rows, grid) + tight_text(rows) + unmeasured_text(rows) + host_text(rows) +
           not_chosen_text(rows) + ratio_text(line, grid, rows);
  }
  const std::vector<std::string> columns = columns_of(rows, grid);
  const std::vector<report::CellRow> cells = cells_of(rows, grid, columns);
  return format == report::Format::csv ? report::to_csv(columns, cells) : rows_json(columns, cells);
}

}  // namespace moesim::tool
