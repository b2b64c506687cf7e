#include "sim/routing/traces/trace_import.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "sim/base/error.hpp"
#include "sim/base/formats/csv.hpp"

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

}  // namespace

ImportedTrace import_count_table(const CountTableQuery& query) {
  const CsvTable table = CsvTable::load(query.file);
  const std::size_t columns[] = {table.find("step"), table.find("rank"), table.column("layer")};
  const std::size_t expert_at = table.column("expert");
  const std::size_t count_at = table.column("count");
  const std::vector<std::size_t> rows = rows_where(table, query);
  std::map<Place, std::map<std::int64_t, std::int64_t>> all;
  for (const std::size_t row : rows) {
    Place place{};
    for (std::size_t axis = 0; axis < place.size(); ++axis) {
      if (columns[axis] == CsvTable::npos) continue;
      place[axis] = table.whole(row, columns[axis], std::numeric_limits<std::int32_t>::max());
    }
    const std::int64_t expert = table.whole(row, expert_at, query.experts - 1);
    const std::int64_t count = table.whole(row, count_at, Trace::most_tokens);
    if (all[place].emplace(expert, count).second) continue;
    const std::string left =
        choices_left(table, rows, {columns[0], columns[1], columns[2], expert_at, count_at});
    throw UsageError(fmt::format("{}, line {}: layer {}, expert {} is there twice{}", table.name,
                                 table.lines[row], place[2], expert,
                                 left.empty() ? "" : ": choose by --where one of " + left));
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
  return {trace_of_counts(query.file, shape, std::move(counts)),
          columns[0] == CsvTable::npos ? std::vector<std::int64_t>{} : steps, layers, what};
}

}  // namespace moesim::routing
