#include "sim/routing/traces/trace_import.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>

#include "sim/base/error.hpp"
#include "sim/base/formats/csv.hpp"
#include "sim/base/text.hpp"

namespace moesim::routing {

namespace {

[[noreturn]] void refuse(const std::string& file, const std::string& reason) {
  throw UsageError(fmt::format("{}: {}", file, reason));
}

// The columns in which the kept rows differ, with their values: what --where can still select.
std::string choices_left(const CsvTable& table, const std::vector<std::size_t>& rows,
                         const std::set<std::size_t>& used) {
  std::string text;
  for (std::size_t column = 0; column < table.columns.size(); ++column) {
    std::set<std::string> values;
    for (const std::size_t row : rows) values.insert(table.rows[row][column]);
    if (used.contains(column) || values.size() < 2) continue;
    text += fmt::format("{}{}={}", text.empty() ? "" : ", ", table.columns[column],
                        fmt::join(values, "|"));
  }
  return text;
}

std::vector<std::size_t> rows_where(const CsvTable& table, const CountTableQuery& query) {
  std::vector<std::size_t> kept(table.rows.size());
  std::iota(kept.begin(), kept.end(), std::size_t{0});
  for (const auto& [column, value] : query.where) {
    const std::size_t at = table.column(column);
    std::set<std::string> values;
    std::erase_if(kept, [&, &wanted = value](std::size_t row) {
      values.insert(table.rows[row][at]);
      return table.rows[row][at] != wanted;
    });
    if (kept.empty()) {
      refuse(table.name, fmt::format("--where {}={}: no such row; {} is one of {}", column, value,
                                     column, fmt::join(values, ", ")));
    }
  }
  if (kept.empty()) refuse(table.name, "no rows of counts");
  return kept;
}

using Place = std::array<std::int64_t, 3>;  // step, rank, layer

std::vector<std::int64_t> numbers_of(
    const std::map<Place, std::map<std::int64_t, std::int64_t>>& all, std::size_t axis) {
  std::set<std::int64_t> numbers;
  for (const auto& [place, counts] : all) numbers.insert(place[axis]);
  return {numbers.begin(), numbers.end()};
}

// The expert that a column is named after: "e12", "expert_12", "expert12".
std::optional<std::int64_t> expert_of_column(const std::string& name) {
  for (const std::string_view start : {"expert_", "expert", "e_", "e"}) {
    if (!name.starts_with(start)) continue;
    const std::string_view number = std::string_view(name).substr(start.size());
    if (number.size() <= 5 && is_whole_number(number)) return parse_number<std::int64_t>(number);
  }
  return std::nullopt;
}

// Where a table has its counts.
struct CountColumns {
  std::size_t step = CsvTable::npos;
  std::size_t rank = CsvTable::npos;
  std::size_t layer = CsvTable::npos;
  std::size_t expert = CsvTable::npos;  // a row for each expert: this column and `count`
  std::size_t count = CsvTable::npos;
  std::vector<std::pair<std::int64_t, std::size_t>> of_expert;  // else a column for each expert

  std::set<std::size_t> used() const {
    std::set<std::size_t> columns{step, rank, layer, expert, count};
    for (const auto& [number, column] : of_expert) columns.insert(column);
    return columns;
  }
};

// Columns of experts that begin with 1: expert 0 would be one that is never chosen.
void check_first_expert(const CsvTable& table,
                        const std::vector<std::pair<std::int64_t, std::size_t>>& experts) {
  if (experts.empty()) return;
  const auto [first, column] = *std::min_element(experts.begin(), experts.end());
  if (first == 0) return;
  refuse(table.name, fmt::format("its columns of experts begin with {}: number them from 0",
                                 table.columns[column]));
}

CountColumns columns_of(const CsvTable& table) {
  CountColumns columns;
  columns.step = table.find("step");
  columns.rank = table.find("rank");
  columns.expert = table.find("expert");
  columns.count = table.find("count");
  if (columns.expert == CsvTable::npos && columns.count == CsvTable::npos) {
    for (std::size_t column = 0; column < table.columns.size(); ++column) {
      const auto expert = expert_of_column(table.columns[column]);
      if (expert) columns.of_expert.emplace_back(*expert, column);
    }
    check_first_expert(table, columns.of_expert);
  }
  columns.layer = table.column("layer");
  if (columns.of_expert.empty()) {
    columns.expert = table.column("expert");
    columns.count = table.column("count");
  }
  return columns;
}

struct CountCell {
  std::int64_t expert = 0;
  std::int64_t count = 0;
};

std::vector<CountCell> cells_of(const CsvTable& table, std::size_t row, const CountColumns& columns,
                                int experts) {
  if (columns.of_expert.empty()) {
    return {{table.whole(row, columns.expert, experts - 1),
             table.whole(row, columns.count, Trace::most_tokens)}};
  }
  std::vector<CountCell> cells;
  for (const auto& [expert, column] : columns.of_expert) {
    if (expert >= experts) {
      refuse(table.name, fmt::format("column {}: --experts is {}, so that they are 0 to {}",
                                     table.columns[column], experts, experts - 1));
    }
    cells.push_back({expert, table.whole(row, column, Trace::most_tokens)});
  }
  return cells;
}

// Experts that are not in the table at all are likelier too large an --experts than never chosen.
std::vector<std::string> missing_experts(const CsvTable& table, std::int64_t last, int experts) {
  if (last + 1 >= experts) return {};
  return {
      fmt::format("warning: {} has experts 0 to {}, --experts is {}: the other {} have no tokens "
                  "at all: is --experts right?",
                  table.name, last, experts, experts - 1 - last)};
}

}  // namespace

ImportedTrace import_count_table(const CountTableQuery& query) {
  const CsvTable table = CsvTable::load(query.file);
  const CountColumns columns = columns_of(table);
  const std::vector<std::size_t> rows = rows_where(table, query);
  std::map<Place, std::map<std::int64_t, std::int64_t>> all;
  std::map<Place, std::size_t> lines;  // of the first row of each
  std::int64_t last_expert = 0;
  for (const std::size_t row : rows) {
    Place place{};
    const std::size_t axes[] = {columns.step, columns.rank, columns.layer};
    for (std::size_t axis = 0; axis < place.size(); ++axis) {
      if (axes[axis] == CsvTable::npos) continue;
      place[axis] = table.whole(row, axes[axis], std::numeric_limits<std::int32_t>::max());
    }
    lines.emplace(place, table.lines[row]);
    for (const auto& [expert, count] : cells_of(table, row, columns, query.experts)) {
      last_expert = std::max(last_expert, expert);
      if (all[place].emplace(expert, count).second) continue;
      const std::string left = choices_left(table, rows, columns.used());
      throw UsageError(fmt::format("{}, line {}: layer {}, expert {} is there twice{}", table.name,
                                   table.lines[row], place[2], expert,
                                   left.empty() ? "" : ": choose by --where one of " + left));
    }
  }
  const std::vector<std::int64_t> steps = numbers_of(all, 0), ranks = numbers_of(all, 1),
                                  layers = numbers_of(all, 2);
  TraceShape shape;
  shape.steps = static_cast<int>(steps.size());
  shape.ranks = static_cast<int>(ranks.size());
  shape.layers = static_cast<int>(layers.size());
  shape.experts = query.experts;
  shape.top_k = query.top_k;
  std::vector<std::int64_t> counts;
  for (const std::int64_t step : steps) {
    for (const std::int64_t rank : ranks) {
      for (const std::int64_t layer : layers) {
        const auto found = all.find({step, rank, layer});
        if (found == all.end()) {
          refuse(table.name,
                 fmt::format("no counts of step {}, rank {}, layer {}", step, rank, layer));
        }
        for (std::int64_t expert = 0; expert < query.experts; ++expert) {
          const auto count = found->second.find(expert);
          counts.push_back(count == found->second.end() ? 0 : count->second);
        }
      }
    }
  }
  std::string what = "a count table";
  for (const auto& [column, value] : query.where) what += fmt::format(", {} = {}", column, value);
  const Place first{steps.front(), ranks.front(), layers.front()};
  const std::string where = fmt::format("line {}: the counts of step {}, rank {}, layer {}",
                                        lines[first], first[0], first[1], first[2]);
  return {trace_of_counts(query.file, shape, std::move(counts), where),
          columns.step == CsvTable::npos ? std::vector<std::int64_t>{} : steps, layers, what,
          missing_experts(table, last_expert, query.experts)};
}

}  // namespace moesim::routing
