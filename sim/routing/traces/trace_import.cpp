#include "sim/routing/traces/trace_import.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "sim/base/csv.hpp"
#include "sim/base/error.hpp"
#include "sim/base/npz.hpp"

namespace moesim::routing {

namespace {

[[noreturn]] void refuse(const std::string& file, const std::string& reason) {
  throw UsageError(fmt::format("{}: {}", file, reason));
}

// The trace of counts [step, rank, layer, expert]; the number of tokens follows from the counts.
std::shared_ptr<const Trace> trace_of(const std::string& file, TraceShape shape,
                                      std::vector<std::int64_t> counts) {
  if (shape.top_k < 1 || shape.top_k > shape.experts) {
    refuse(file, fmt::format("--top-k: {} experts per token of {}", shape.top_k, shape.experts));
  }
  const auto first = counts.begin();
  for (auto count = first; count != first + shape.experts; ++count) {
    if (*count >= 0 && *count <= Trace::most_tokens) continue;
    refuse(file, fmt::format("a count of {}: they are 0 to {}", *count, Trace::most_tokens));
  }
  const std::int64_t routes = std::accumulate(first, first + shape.experts, std::int64_t{0});
  if (routes % shape.top_k != 0 || routes == 0) {
    refuse(file, fmt::format("the first counts add up to {}, which is no number of tokens of "
                             "--top-k {} each",
                             routes, shape.top_k));
  }
  shape.tokens = routes / shape.top_k;
  return Trace::of_counts(file, shape, std::move(counts));
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

ImportedCounts import_count_table(const CountTableQuery& query) {
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
  return {trace_of(query.file, shape, std::move(counts)),
          columns[0] == CsvTable::npos ? std::vector<std::int64_t>{} : steps, layers, what};
}

namespace {

NpyArray array_of(const CountArrayQuery& query) {
  if (!query.file.ends_with(".npz")) {
    if (!query.array.empty() || !query.steps.empty()) {
      refuse(query.file, "--array and --steps name arrays of an .npz file, and this is none");
    }
    return NpyArray::load(query.file);
  }
  const NpzArchive archive = NpzArchive::load(query.file);
  if (query.array.empty()) {
    refuse(query.file,
           fmt::format("--array is missing: it holds {}", fmt::join(archive.names(), ", ")));
  }
  return archive.array(query.array);
}

constexpr const char* axis_names[] = {"step", "micro-batch", "rank", "layer", "expert"};

// The position in the array of each of axis_names, -1: absent.
std::array<int, 5> axis_places(const CountArrayQuery& query, const NpyArray& array) {
  if (query.axes.size() != array.shape.size()) {
    refuse(array.name, fmt::format("shape {}, but --axes names {}: [{}]", array.shape_text(),
                                   query.axes.size(), fmt::join(query.axes, ", ")));
  }
  std::array<int, 5> places{-1, -1, -1, -1, -1};
  for (std::size_t at = 0; at < query.axes.size(); ++at) {
    const auto known = std::find(std::begin(axis_names), std::end(axis_names), query.axes[at]);
    const auto name = static_cast<std::size_t>(known - std::begin(axis_names));
    if (known == std::end(axis_names) || places[name] >= 0) {
      throw UsageError(fmt::format("--axes: '{}': give each of {} at most once, expert always",
                                   query.axes[at], fmt::join(axis_names, ", ")));
    }
    places[name] = static_cast<int>(at);
  }
  if (places[4] < 0) throw UsageError("--axes: expert is missing");
  return places;
}

}  // namespace

ImportedCounts import_count_array(const CountArrayQuery& query) {
  const NpyArray array = array_of(query);
  const std::vector<std::int64_t> values = array.integers();
  if (values.empty()) refuse(array.name, fmt::format("shape {}: no counts", array.shape_text()));
  const std::array<int, 5> places = axis_places(query, array);
  // Lengths and strides in the order of axis_names.
  std::array<std::int64_t, 5> length{1, 1, 1, 1, 1}, stride{};
  std::int64_t inner = 1;
  for (std::size_t at = array.shape.size(); at-- > 0;) {
    const auto name = static_cast<std::size_t>(
        std::find(places.begin(), places.end(), static_cast<int>(at)) - places.begin());
    length[name] = array.shape[at];
    stride[name] = inner;
    inner *= array.shape[at];
  }
  std::vector<std::int64_t> counts;
  counts.reserve(values.size());
  for (std::int64_t outer = 0; outer < length[0] * length[1]; ++outer) {
    const std::int64_t at_step = outer / length[1] * stride[0] + outer % length[1] * stride[1];
    for (std::int64_t rank = 0; rank < length[2]; ++rank) {
      for (std::int64_t layer = 0; layer < length[3]; ++layer) {
        const std::int64_t start = at_step + rank * stride[2] + layer * stride[3];
        for (std::int64_t expert = 0; expert < length[4]; ++expert) {
          counts.push_back(values[static_cast<std::size_t>(start + expert * stride[4])]);
        }
      }
    }
  }
  TraceShape shape;
  shape.steps = static_cast<int>(length[0] * length[1]);
  shape.ranks = static_cast<int>(length[2]);
  shape.layers = static_cast<int>(length[3]);
  shape.experts = static_cast<int>(length[4]);
  shape.top_k = query.top_k;
  std::vector<std::int64_t> steps;
  if (!query.steps.empty()) {
    const std::vector<std::int64_t> numbers =
        NpzArchive::load(query.file).array(query.steps).integers();
    if (static_cast<std::int64_t>(numbers.size()) != length[0]) {
      refuse(query.file, fmt::format("--steps {}: {} numbers for {} steps", query.steps,
                                     numbers.size(), length[0]));
    }
    for (const std::int64_t number : numbers) {
      steps.insert(steps.end(), static_cast<std::size_t>(length[1]), number);
    }
  }
  const std::string what = fmt::format(
      "an array of counts [{}]{}", fmt::join(query.axes, ", "),
      length[1] > 1 ? fmt::format(", {} micro-batches of a step as steps", length[1]) : "");
  return {trace_of(array.name, shape, std::move(counts)), std::move(steps), {}, what};
}

}  // namespace moesim::routing
