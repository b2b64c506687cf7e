#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moesim {

// A CSV table (RFC 4180: quoted fields may hold commas, quotes and line breaks), all cells text.
struct CsvTable {
  std::string name;  // the file, for messages
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
  std::vector<std::size_t> lines;  // the line each row starts on, 1-based

  // Throws UsageError naming the file and the line of the first malformed row.
  static CsvTable load(const std::string& path);
  static CsvTable parse(std::string_view text, const std::string& name);

  // The index of a column, or npos.
  static constexpr std::size_t npos = static_cast<std::size_t>(-1);
  std::size_t find(const std::string& column) const;
  // The index of a column; throws UsageError naming the file and the columns there are.
  std::size_t column(const std::string& name_of_column) const;
  // A cell as a whole number from 0 to `most`, as a finite number, as a finite number above 0.
  // Throw UsageError naming file, line and column.
  std::int64_t whole(std::size_t row, std::size_t column, std::int64_t most) const;
  double number(std::size_t row, const std::string& name_of_column) const;
  double positive(std::size_t row, const std::string& name_of_column) const;
  const std::string& text(std::size_t row, const std::string& name_of_column) const {
    return rows[row][column(name_of_column)];
  }
};

// One line, quoted where needed, ending in '\n'.
std::string csv_line(const std::vector<std::string>& cells);

}  // namespace moesim
