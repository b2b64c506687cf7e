#include "sim/network/exchange/exchange_files.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/formats/npy.hpp"
#include "sim/base/text.hpp"

namespace moesim::network {
namespace {

constexpr double most_bytes = 9007199254740992.0;  // 2^53: every whole number below is a double
constexpr double latest_us = 10.0 * 24 * 3600 * 1e6;

struct Cell {
  std::string_view text;
  std::size_t line;    // 1-based
  std::size_t column;  // 1-based
};

// "m.csv: line 2, column 3: ..."
[[noreturn]] void refuse(const std::string& path, const Cell& cell, const std::string& reason) {
  throw UsageError(fmt::format("{}: line {}, column {}: {}", path, cell.line, cell.column, reason));
}

// The cells of each line that is not blank. CsvTable is for tables with a header.
std::vector<std::vector<Cell>> cells_of(std::string_view content) {
  constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";  // spreadsheets write one
  if (content.starts_with(byte_order_mark)) content.remove_prefix(byte_order_mark.size());
  std::vector<std::vector<Cell>> rows;
  std::size_t number = 0;
  for (const std::string_view line : split(content, '\n')) {
    ++number;
    if (trimmed(line).empty()) continue;
    std::vector<Cell> cells;
    for (const std::string_view cell : split(line, ',')) {
      cells.push_back({trimmed(cell), number, cells.size() + 1});
    }
    rows.push_back(std::move(cells));
  }
  return rows;
}

double number(const std::string& path, const Cell& cell) {
  if (cell.text.empty()) refuse(path, cell, "the number is missing");
  const std::optional<double> value = parse_number<double>(cell.text);
  if (!value) {
    refuse(path, cell,
           fmt::format("'{}' is not a number, or out of range{}", cell.text,
                       cell.line == 1 ? " (a header line is not expected)" : ""));
  }
  return *value;
}

// Why a number is no amount of bytes, or nothing.
std::string problem_of_bytes(double value) {
  if (!std::isfinite(value)) return fmt::format("{} is no amount of bytes", value);
  if (value < 0) return fmt::format("{} bytes: a rank cannot send less than 0", value);
  if (value != std::floor(value)) return fmt::format("{} bytes: expected a whole number", value);
  if (value > most_bytes) return fmt::format("{} bytes are more than 2^53", value);
  return {};
}

std::string problem_of_start(double us) {
  if (!std::isfinite(us)) return fmt::format("{} is no start time", us);
  if (us < 0) return fmt::format("{} us: the exchange cannot start before 0", us);
  if (us > latest_us) return fmt::format("{} us: later than ten days", us);
  return {};
}

void check_total(const std::string& path, const ByteMatrix& bytes) {
  double total = 0;
  for (int source = 0; source < bytes.ranks(); ++source) {
    for (int destination = 0; destination < bytes.ranks(); ++destination) {
      total += static_cast<double>(bytes.at(source, destination));
    }
  }
  if (total <= most_bytes) return;
  throw UsageError(
      fmt::format("{}: {:.3g} bytes in all are more than 2^53: are they bytes?", path, total));
}

ByteMatrix matrix_from_csv(const std::string& path, const std::string& content) {
  const std::vector<std::vector<Cell>> rows = cells_of(content);
  if (rows.empty()) throw UsageError(fmt::format("{}: line 1: no numbers", path));
  const std::size_t width = rows.front().size();
  for (const std::vector<Cell>& row : rows) {
    if (row.size() == width) continue;
    throw UsageError(fmt::format("{}: line {}: {} numbers, but line {} has {}", path,
                                 row.front().line, row.size(), rows.front().front().line, width));
  }
  ByteMatrix bytes(static_cast<int>(width));
  for (std::size_t source = 0; source < rows.size(); ++source) {
    for (const Cell& cell : rows[source]) {
      const double value = number(path, cell);
      if (const std::string problem = problem_of_bytes(value); !problem.empty()) {
        refuse(path, cell, problem);
      }
      if (source >= width) continue;  // reported below
      bytes.at(static_cast<int>(source), static_cast<int>(cell.column) - 1) =
          static_cast<std::int64_t>(value);
    }
  }
  if (rows.size() != width) {
    throw UsageError(fmt::format(
        "{}: {} lines of {} numbers: a byte matrix has as many lines as numbers in each", path,
        rows.size(), width));
  }
  return bytes;
}

template <typename Value>
std::vector<double> converted(const NpyArray& array) {
  std::vector<double> values;
  values.reserve(array.bytes.size() / sizeof(Value));
  for (std::size_t at = 0; at < array.bytes.size(); at += sizeof(Value)) {
    Value value;
    std::memcpy(&value, array.bytes.data() + at, sizeof(Value));
    values.push_back(static_cast<double>(value));
  }
  return values;
}

// Rounding beyond 2^53 does not matter: such numbers are refused.
std::vector<double> numbers_of(const NpyArray& array) {
  if (array.dtype == "<i8") return converted<std::int64_t>(array);
  if (array.dtype == "<u8") return converted<std::uint64_t>(array);
  if (array.dtype == "<i4") return converted<std::int32_t>(array);
  if (array.dtype == "<f8") return converted<double>(array);
  if (array.dtype == "<f4") return converted<float>(array);
  throw UsageError(fmt::format(
      "{}: dtype '{}': a byte matrix is int64, uint64, int32, float32 or float64: save it with "
      ".astype('int64')",
      array.name, array.dtype));
}

ByteMatrix matrix_from_npy(const std::string& path, const std::string& content) {
  const NpyArray array = NpyArray::parse_any_order(content, path);
  constexpr std::int64_t most_ranks = 1 << 20;
  if (array.shape.size() != 2 || array.shape[0] != array.shape[1] || array.shape[0] < 1 ||
      array.shape[0] > most_ranks) {
    throw UsageError(fmt::format("{}: shape {}: a byte matrix of N ranks has shape [N, N]", path,
                                 array.shape_text()));
  }
  const std::vector<double> values = numbers_of(array);
  const int ranks = static_cast<int>(array.shape[0]);
  ByteMatrix bytes(ranks);
  for (int source = 0; source < ranks; ++source) {
    for (int destination = 0; destination < ranks; ++destination) {
      const int row = array.fortran_order ? destination : source;
      const int column = array.fortran_order ? source : destination;
      const double* value =
          &values[static_cast<std::size_t>(row) * static_cast<std::size_t>(ranks) +
                  static_cast<std::size_t>(column)];
      if (const std::string problem = problem_of_bytes(*value); !problem.empty()) {
        throw UsageError(
            fmt::format("{}: element [{}, {}]: {}", path, source, destination, problem));
      }
      bytes.at(source, destination) = static_cast<std::int64_t>(*value);
    }
  }
  return bytes;
}

bool is_npy(const std::string& path, const std::string& content) {
  return path.ends_with(".npy") || content.starts_with("\x93NUMPY");
}

void check_count(const std::string& path, std::size_t count, int ranks) {
  if (count == static_cast<std::size_t>(ranks)) return;
  throw UsageError(
      fmt::format("{}: {} start times for {} ranks: one is needed for each", path, count, ranks));
}

std::vector<Picoseconds> starts_from_csv(const std::string& path, const std::string& content,
                                         int ranks) {
  const std::vector<std::vector<Cell>> rows = cells_of(content);
  std::vector<Picoseconds> starts;
  for (const std::vector<Cell>& row : rows) {
    if (rows.size() > 1 && row.size() > 1) {
      throw UsageError(fmt::format("{}: line {}: {} numbers: start times are one row or one column",
                                   path, row.front().line, row.size()));
    }
    for (const Cell& cell : row) {
      const double us = number(path, cell);
      if (const std::string problem = problem_of_start(us); !problem.empty()) {
        refuse(path, cell, problem);
      }
      starts.push_back(Picoseconds::from_us(us));
    }
  }
  check_count(path, starts.size(), ranks);
  return starts;
}

std::vector<Picoseconds> starts_from_npy(const std::string& path, const std::string& content,
                                         int ranks) {
  const NpyArray array = NpyArray::parse(content, path);
  if (array.shape.size() != 1) {
    throw UsageError(fmt::format("{}: shape {}: start times of N ranks have shape [N]", path,
                                 array.shape_text()));
  }
  std::vector<Picoseconds> starts;
  for (const double us : array.float64()) {
    if (const std::string problem = problem_of_start(us); !problem.empty()) {
      throw UsageError(fmt::format("{}: element [{}]: {}", path, starts.size(), problem));
    }
    starts.push_back(Picoseconds::from_us(us));
  }
  check_count(path, starts.size(), ranks);
  return starts;
}

}  // namespace

ByteMatrix load_byte_matrix(const std::string& path) {
  const std::string content = read_file(path);
  ByteMatrix bytes =
      is_npy(path, content) ? matrix_from_npy(path, content) : matrix_from_csv(path, content);
  check_total(path, bytes);
  return bytes;
}

std::vector<Picoseconds> load_start_times(const std::string& path, int ranks) {
  const std::string content = read_file(path);
  return is_npy(path, content) ? starts_from_npy(path, content, ranks)
                               : starts_from_csv(path, content, ranks);
}

}  // namespace moesim::network
