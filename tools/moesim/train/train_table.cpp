#include "tools/moesim/train/train_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "sim/report/slot_share.hpp"
#include "sim/study/search/memory_share.hpp"
#include "sim/study/sweep/counted_loss.hpp"
#include "tools/moesim/bands/train_band.hpp"
#include "tools/moesim/rows/part_columns.hpp"
#include "tools/moesim/train/train_ratio.hpp"
#include "tools/moesim/train/train_warnings.hpp"

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

// A refused point has the values that were typed, no others.
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
      part_column(name_in(training::part_names, training::TrainingPart::host));
  return host_limits(point.figure(column), point.figure("step_ms"));
}

// What the last column warns of: "TIGHT, host limits".
std::string warnings_of(const TrainPoint& point) {
  return point.row ? point.text(warnings_column) : "refused";
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

// Under the table, what the model's own router passes over.
std::string not_chosen_text(const std::vector<TrainPoint>& points) {
  std::vector<study::StatedLoss> losses;
  for (const TrainPoint& point : points) {
    losses.push_back({point.figure("residual_loss"), point.figure("counted_loss")});
  }
  return study::not_counted_text(losses);
}

// "80 %": the level of the bands that a column of rows has, mostly the same for all of them.
std::string band_level(const std::vector<TrainPoint>& points, const char* column) {
  std::string text;
  for (const TrainPoint& point : points) {
    if (!point.row) continue;
    const std::string level = number(point, column, 100, 0) + " %";
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

// A column of the table: what stands over it and in the line of a point.
struct TableColumn {
  std::string heading;
  std::function<std::string(const TrainPoint& point)> cell;
};

// A figure of the result's column `name`, times `scale`.
TableColumn number_column(std::string heading, const char* name, double scale, int digits) {
  return {std::move(heading),
          [=](const TrainPoint& point) { return number(point, name, scale, digits); }};
}

bool any_has(const std::vector<TrainPoint>& points, const char* column) {
  return std::any_of(points.begin(), points.end(),
                     [&](const TrainPoint& point) { return !number(point, column, 1, 0).empty(); });
}

using TableColumns = std::vector<TableColumn>;

bool has_several_prices(const std::vector<TrainPoint>& points) {
  std::set<double> prices;
  for (const TrainPoint& point : points) {
    if (point.row) prices.insert(number_in(point.cell("gpu_hour_price")));
  }
  return prices.size() > 1;
}

void add_costs(const std::vector<TrainPoint>& points, TableColumns& columns) {
  const auto add = [&](const char* heading, const char* name, int digits) {
    if (any_has(points, name)) columns.push_back(number_column(heading, name, 1, digits));
  };
  add("days", "run_days", 1);
  if (has_several_prices(points)) {
    columns.push_back({"a GPU hour", [](const TrainPoint& point) {
                         const Cell price = point.cell("gpu_hour_price");
                         return is_absent(price) ? "" : fmt::format("{:g}", number_in(price));
                       }});
  }
  add("cost", "run_cost", 0);
  add("cost/1e12 tokens", "cost_per_1e12_tokens", 0);
}

// Whether the token loss has a band with a width. The band of the model's own router holds what the
// choice alone leaves out, too: it is not that of the loss that counts.
bool has_loss_band(const TrainPoint& point) {
  if (point.figure("counted_loss") < point.figure("residual_loss")) return false;
  return point.figure("residual_loss_p95") > point.figure("residual_loss_p05");
}

std::string loss_band_text(const TrainPoint& point) {
  if (!has_loss_band(point)) return "";
  return fmt::format("{:.2f} to {:.2f}", 100 * point.figure("residual_loss_p05"),
                     100 * point.figure("residual_loss_p95"));
}

// Adds the losses of drawn routing.
void add_losses(const std::vector<TrainPoint>& points, TableColumns& columns) {
  if (!any_has(points, "counted_loss")) return;
  columns.push_back(number_column("token loss %", "counted_loss", 100, 2));
  const bool any_band = std::any_of(points.begin(), points.end(), has_loss_band);
  if (any_band) columns.push_back({"of one step, p05 to p95", loss_band_text});
  report::SlotShares slots;
  for (const TrainPoint& point : points) {
    slots.add(point.cell("padding"), point.cell("capacity"));
  }
  if (slots.any()) {
    columns.push_back({slots.heading(), [](const TrainPoint& point) {
                         const bool has_slots = report::SlotShares::has_slots(
                             point.cell("padding"), point.cell("capacity"));
                         return has_slots ? number(point, "padded", 100, 2) : "";
                       }});
  }
  columns.push_back(number_column("imbalance", "imbalance", 1, 3));
}

void add_comparison(const std::vector<TrainPoint>& points, TableColumns& columns) {
  if (!any_has(points, "speed_over_baseline")) return;
  columns.push_back(number_column("speed over baseline", "speed_over_baseline", 1, 3));
  columns.push_back({fmt::format("ratio if measured, {}", band_level(points, "baseline_level")),
                     [](const TrainPoint& point) {
                       return point.row
                                  ? fmt::format("{} to {}",
                                                number(point, "speed_over_baseline_low", 1, 2),
                                                number(point, "speed_over_baseline_high", 1, 2))
                                  : "";
                     }});
  columns.push_back({"more than noise at", [](const TrainPoint& point) -> std::string {
                       if (!point.row) return "";
                       const std::string surety = number(point, "beyond_noise_level", 100, 0);
                       return surety.empty() ? "within noise" : surety + " %";
                     }});
}

// The figures of the table, behind the options.
TableColumns figure_columns(const std::vector<TrainPoint>& points) {
  TableColumns columns = {
      number_column("step ms", "step_ms", 1, 1),
      {fmt::format("if measured, {}", band_level(points, "band_level")),
       [](const TrainPoint& point) {
         return point.row ? fmt::format("{} to {}", number(point, "step_ms_low", 1, 0),
                                        number(point, "step_ms_high", 1, 0))
                          : "";
       }},
      number_column("tokens/s/GPU", "tokens_per_s_per_gpu", 1, 0),
      number_column("MFU %", "mfu", 100, 1),
  };
  const bool any_dropped = std::any_of(points.begin(), points.end(), [](const TrainPoint& point) {
    return point.figure("failed") > 0;
  });
  if (any_dropped) columns.push_back(number_column("of kept routes", "mfu_kept", 100, 1));
  columns.push_back(number_column("memory GiB", "memory_gib", 1, 1));
  add_costs(points, columns);
  add_losses(points, columns);
  add_comparison(points, columns);
  columns.push_back({"", warnings_of});
  return columns;
}

std::string table_of(const std::vector<TrainPoint>& points, const TrainGrid& grid) {
  const TableColumns columns = figure_columns(points);
  std::vector<std::vector<std::string>> lines(1);
  for (const Flag& flag : grid.flags) lines[0].push_back(column_of(flag));
  for (const TableColumn& column : columns) lines[0].push_back(column.heading);
  for (std::size_t at = 0; at < points.size(); ++at) {
    std::vector<std::string> line;
    for (std::size_t flag = 0; flag < grid.flags.size(); ++flag) {
      line.push_back(shown_value(points[at], grid.flags[flag], grid.values[at][flag]));
    }
    for (const TableColumn& column : columns) line.push_back(column.cell(points[at]));
    lines.push_back(std::move(line));
  }
  std::vector<bool> right(lines[0].size(), true);
  std::fill_n(right.begin(), grid.flags.size(), false);
  right.back() = false;
  return report::align(lines, right);
}

// What was not measured of the rows that were predicted, by their numbers.
std::string unmeasured_text(const std::vector<TrainPoint>& rows) {
  std::vector<UnmeasuredStep> steps;
  for (std::size_t at = 0; at < rows.size(); ++at) {
    if (!rows[at].row) continue;
    const Cell cell = rows[at].row->cell(not_measured_column);
    const auto* text = std::get_if<std::string>(&cell);
    steps.push_back({fmt::format("row {}", at + 1),
                     text == nullptr ? std::vector<std::string>() : listed(*text),
                     study::names_own_software(rows[at].text("software"))});
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
