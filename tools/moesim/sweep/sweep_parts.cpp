#include "tools/moesim/sweep/sweep_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "sim/base/digest.hpp"
#include "sim/base/error.hpp"
#include "sim/base/formats/csv.hpp"
#include "sim/base/text.hpp"
#include "sim/report/formats.hpp"

namespace moesim::tool {
namespace {

std::string logits_key(const study::SweepPoint& point) {
  const bool routes = point.refusal.empty() && point.scenario && point.scenario->has_moe();
  return routes ? point.scenario->routing_job().logits_key() : "";
}

struct RowName {
  std::size_t number = 0;
  std::size_t total = 0;
  std::string_view sweep;
};

std::optional<RowName> parse_name(std::string_view text) {
  const std::size_t slash = text.find('/');
  const std::size_t colon = text.find(':');
  if (slash == std::string_view::npos || colon == std::string_view::npos || colon < slash) {
    return std::nullopt;
  }
  const auto number = parse_number<std::size_t>(text.substr(0, slash));
  const auto total = parse_number<std::size_t>(text.substr(slash + 1, colon - slash - 1));
  if (!number || !total || *number < 1 || *number > *total) return std::nullopt;
  return RowName{*number, *total, text.substr(colon + 1)};
}

CsvTable load_part(const std::string& path) {
  CsvTable table = CsvTable::load(path);
  if (table.columns.empty() || table.columns.back() != RowNames::column) {
    throw UsageError(fmt::format(
        "{}: no part of a sweep: its last column is not {}; 'moesim sweep --shard' writes it", path,
        RowNames::column));
  }
  return table;
}

RowName name_in(const CsvTable& table, std::size_t row) {
  if (const auto name = parse_name(table.rows[row].back())) return *name;
  throw UsageError(fmt::format("{}, line {}, column {}: '{}' names no row of a sweep", table.name,
                               table.lines[row], RowNames::column, table.rows[row].back()));
}

}  // namespace

std::vector<Chunk> chunks_of(const std::vector<study::SweepPoint>& points) {
  std::map<std::string, std::size_t> open;  // the chunk of a key that has room
  std::vector<Chunk> chunks;
  for (std::size_t point = 0; point < points.size(); ++point) {
    if (points[point].repeats) continue;
    const std::string key = logits_key(points[point]);
    const auto found = open.find(key);
    if (found == open.end() || chunks[found->second].size() == rows_of_chunk) {
      open[key] = chunks.size();
      chunks.emplace_back();
    }
    chunks[open[key]].push_back(point);
  }
  return chunks;
}

Shard parse_shard(const std::string& text) {
  const std::size_t slash = text.find('/');
  const auto number = parse_number<std::size_t>(std::string_view(text).substr(0, slash));
  const auto count = slash == std::string::npos
                         ? std::nullopt
                         : parse_number<std::size_t>(std::string_view(text).substr(slash + 1));
  if (!number || !count || *number < 1 || *number > *count) {
    throw UsageError(fmt::format(
        "--shard: '{}': give I/N, the I-th of N shards, I from 1 to N: 1/8, ..., 8/8", text));
  }
  return {*number, *count};
}

std::vector<std::size_t> rows_of(const Shard& shard, const std::vector<Chunk>& chunks) {
  std::vector<std::size_t> rows;
  for (std::size_t chunk = shard.number - 1; chunk < chunks.size(); chunk += shard.count) {
    rows.insert(rows.end(), chunks[chunk].begin(), chunks[chunk].end());
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

RowNames::RowNames(const std::vector<study::SweepPoint>& points, const std::string& fingerprint)
    : number_(points.size()), sweep_(fmt::format("{:016x}", Digest().add(fingerprint).value())) {
  for (std::size_t point = 0; point < points.size(); ++point) {
    if (!points[point].repeats) number_[point] = ++total_;
  }
}

std::string RowNames::name(std::size_t point) const {
  return fmt::format("{}/{}:{}", number_[point], total_, sweep_);
}

std::string RowNames::csv(const std::vector<std::size_t>& points,
                          const std::vector<study::Row>& rows) const {
  std::vector<std::string> columns = study::names_of(study::result_columns());
  columns.emplace_back(column);
  std::vector<report::CellRow> named;
  for (std::size_t at = 0; at < points.size(); ++at) {
    named.push_back(rows[at]);
    named.back().emplace_back(name(points[at]));
  }
  return report::to_csv(columns, named);
}

std::size_t RowNames::rows_in(const std::string& path) const {
  const CsvTable table = load_part(path);
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    const RowName found = name_in(table, row);
    if (found.total == total_ && found.sweep == sweep_) continue;
    throw UsageError(fmt::format(
        "{}: a part of another sweep, of other options or another build: choose another --out, or "
        "leave --resume out to replace it",
        path));
  }
  return table.rows.size();
}

MergedParts merge_parts(const std::vector<std::string>& files) {
  std::vector<std::string> columns;
  std::optional<std::pair<std::size_t, std::string>> sweep;
  std::map<std::size_t, std::vector<std::string>> rows;
  for (const std::string& file : files) {
    const CsvTable table = load_part(file);
    if (columns.empty()) columns = table.columns;
    if (table.columns != columns) {
      throw UsageError(fmt::format("{}: other columns than {}", file, files.front()));
    }
    for (std::size_t row = 0; row < table.rows.size(); ++row) {
      const RowName name = name_in(table, row);
      if (!sweep) sweep.emplace(name.total, name.sweep);
      if (sweep->first != name.total || sweep->second != name.sweep) {
        throw UsageError(fmt::format(
            "{}, line {}: of another sweep than the rows before: other options or another build of "
            "moesim",
            file, table.lines[row]));
      }
      std::vector<std::string> cells = table.rows[row];
      cells.pop_back();
      const auto [place, is_new] = rows.emplace(name.number, cells);
      if (is_new || place->second == cells) continue;
      throw UsageError(fmt::format("{}, line {}: row {} differs from that of another file", file,
                                   table.lines[row], name.number));
    }
  }
  if (rows.empty()) {
    throw Error("merge: no file holds a row of a sweep: give the files of all its shards");
  }
  MergedParts merged;
  columns.pop_back();
  merged.csv = csv_line(columns);
  merged.rows = rows.size();
  for (const auto& [number, cells] : rows) {
    merged.csv += csv_line(cells);
    merged.refused += cells.front() != "ok";
  }
  for (std::size_t number = 1; number <= sweep->first; ++number) {
    if (!rows.contains(number)) merged.missing.push_back(number);
  }
  return merged;
}

}  // namespace moesim::tool
