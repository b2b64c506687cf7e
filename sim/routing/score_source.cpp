#include "sim/routing/score_source.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <map>

#include "sim/base/csv.hpp"
#include "sim/base/error.hpp"

namespace moesim::routing {

namespace {

[[noreturn]] void refuse(const std::string& what, std::string_view text,
                         const std::string& reason) {
  throw UsageError(fmt::format(
      "{} '{}': {}; choose gaussian:SIGMA (gaussian:0.1), zipf:A (zipf:1.2), dirichlet:A "
      "(dirichlet:0.5) or counts:FILE (a CSV of columns layer, expert, count)",
      what, text, reason));
}

double parse_parameter(const std::string& what, std::string_view text, std::string_view value,
                       double least, bool least_allowed) {
  double number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  const bool whole = error == std::errc() && end == value.data() + value.size();
  if (!whole || !std::isfinite(number)) {
    refuse(what, text, fmt::format("'{}' is not a number", value));
  }
  if (number < least || (number == least && !least_allowed)) {
    refuse(
        what, text,
        fmt::format("the parameter has to be {} {}", least_allowed ? "at least" : "above", least));
  }
  if (number > 1e6) refuse(what, text, "the parameter has to be at most 1e6");
  return number;
}

std::int64_t cell_integer(const CsvTable& table, std::size_t row, std::size_t column,
                          std::int64_t most) {
  const std::string& cell = table.rows[row][column];
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc() || end != cell.data() + cell.size() || value < 0 || value > most) {
    throw UsageError(fmt::format("{}, line {}, column {}: '{}' is not a whole number from 0 to {}",
                                 table.name, table.lines[row], table.columns[column], cell, most));
  }
  return value;
}

// Layers in the order of their numbers, experts 0 .. the largest of the file.
std::vector<std::vector<double>> load_counts(const std::string& file) {
  const CsvTable table = CsvTable::load(file);
  const std::size_t layer_at = table.column("layer");
  const std::size_t expert_at = table.column("expert");
  const std::size_t count_at = table.column("count");
  constexpr std::int64_t most_count = std::int64_t{1} << 52;
  std::map<std::int64_t, std::map<std::int64_t, double>> counts;
  std::int64_t experts = 0;
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    const std::int64_t layer = cell_integer(table, row, layer_at, 65535);
    const std::int64_t expert = cell_integer(table, row, expert_at, 65534);
    const auto count = static_cast<double>(cell_integer(table, row, count_at, most_count));
    experts = std::max(experts, expert + 1);
    if (!counts[layer].emplace(expert, count).second) {
      throw UsageError(fmt::format(
          "{}, line {}: layer {}, expert {} is there twice; keep the rows of one model and domain",
          table.name, table.lines[row], layer, expert));
    }
  }
  if (counts.empty()) throw UsageError(fmt::format("{}: no rows of counts", table.name));
  std::vector<std::vector<double>> popularity;
  for (const auto& [layer, row] : counts) {
    std::vector<double> shares(static_cast<std::size_t>(experts), 0.0);
    double total = 0;
    for (const auto& [expert, count] : row) total += count;
    if (total <= 0) {
      throw UsageError(fmt::format("{}: all counts of layer {} are 0", table.name, layer));
    }
    for (const auto& [expert, count] : row) {
      shares[static_cast<std::size_t>(expert)] = count / total;
    }
    popularity.push_back(std::move(shares));
  }
  return popularity;
}

}  // namespace

std::string ScoreSource::name() const {
  switch (kind) {
    case Kind::gaussian:
      return fmt::format("gaussian:{}", parameter);
    case Kind::zipf:
      return fmt::format("zipf:{}", parameter);
    case Kind::dirichlet:
      return fmt::format("dirichlet:{}", parameter);
    case Kind::counts:
      return fmt::format("counts:{}", file);
  }
  return {};
}

ScoreSource parse_score_source(std::string_view text, const std::string& what) {
  const std::size_t colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  const bool has_value = colon != std::string_view::npos && colon + 1 < text.size();
  const std::string_view value = has_value ? text.substr(colon + 1) : std::string_view{};
  ScoreSource source;
  if (kind == "gaussian") {
    source.kind = ScoreSource::Kind::gaussian;
  } else if (kind == "zipf") {
    source.kind = ScoreSource::Kind::zipf;
  } else if (kind == "dirichlet") {
    source.kind = ScoreSource::Kind::dirichlet;
  } else if (kind == "counts") {
    source.kind = ScoreSource::Kind::counts;
  } else {
    refuse(what, text, fmt::format("'{}' is no source of scores", kind));
  }
  if (!has_value) refuse(what, text, fmt::format("{} needs a value after a colon", kind));
  if (source.kind == ScoreSource::Kind::counts) {
    source.file = std::string(value);
    source.parameter = 0;
    source.popularity =
        std::make_shared<const std::vector<std::vector<double>>>(load_counts(source.file));
    return source;
  }
  const bool zero_allowed = source.kind != ScoreSource::Kind::dirichlet;
  source.parameter = parse_parameter(what, text, value, 0.0, zero_allowed);
  return source;
}

}  // namespace moesim::routing
