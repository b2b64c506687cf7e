#include "tools/moesim/base/kept_result.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "sim/base/contains.hpp"
#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/formats/csv.hpp"
#include "sim/job/job_options.hpp"
#include "sim/study/sweep/sweep.hpp"

namespace moesim::tool {
namespace {

namespace fs = std::filesystem;

using Cells = std::vector<std::string>;

// "rows.csv.old", "rows.csv.old2", ...
std::string kept_name(const std::string& path, int number) {
  return number == 1 ? path + ".old" : fmt::format("{}.old{}", path, number);
}

bool has_result(const CsvTable& table, const Cells& row) {
  const std::size_t status = table.find("status");
  return status == CsvTable::npos || row[status] == "ok";
}

// A column of the old table that says something and that the fresh one lacks; "": none.
std::string lost_column(const CsvTable& old, const CsvTable& fresh) {
  for (std::size_t column = 0; column < old.columns.size(); ++column) {
    const bool is_filled = std::any_of(old.rows.begin(), old.rows.end(),
                                       [&](const Cells& row) { return !row[column].empty(); });
    if (is_filled && fresh.find(old.columns[column]) == CsvTable::npos) return old.columns[column];
  }
  return "";
}

// What the file has and `text` has not: "3 rows that are not in this result"; "": nothing.
std::string others_in(const std::string& path, const std::string& text,
                      const std::vector<std::string>& options) {
  const CsvTable fresh = CsvTable::parse(text, "the result");
  const CsvTable old = CsvTable::load(path);
  if (const std::string lost = lost_column(old, fresh); !lost.empty()) {
    return fmt::format("a column '{}' that is not in this result", lost);
  }
  // An option without a column has no effect there.
  const auto cells_of = [&](const CsvTable& table, const Cells& row) {
    Cells cells;
    for (const std::string& option : options) {
      const std::size_t column = table.find(option);
      cells.push_back(column == CsvTable::npos ? "" : row[column]);
    }
    return cells;
  };
  std::set<Cells> known;
  for (const Cells& row : fresh.rows) {
    if (has_result(fresh, row)) known.insert(cells_of(fresh, row));
  }
  const auto others = std::count_if(old.rows.begin(), old.rows.end(), [&](const Cells& row) {
    return has_result(old, row) && known.count(cells_of(old, row)) == 0;
  });
  if (others == 0) return "";
  return others == 1 ? "1 row that is not in this result"
                     : fmt::format("{} rows that are not in this result", others);
}

// What a text has as CSV or as an array of JSON objects; nothing in another text.
struct TextRows {
  std::size_t rows = 0;
  Cells columns;
};

TextRows rows_in(const std::string& text) {
  const nlohmann::json document = nlohmann::json::parse(text, nullptr, false);
  TextRows found;
  if (document.is_array()) {
    found.rows = document.size();
    for (const nlohmann::json& row : document) {
      if (!row.is_object()) continue;
      for (const auto& [name, value] : row.items()) found.columns.push_back(name);
    }
  }
  if (!document.is_discarded()) return found;
  try {
    const CsvTable table = CsvTable::parse(text, "");
    return {table.rows.size(), table.columns};
  } catch (const Error&) {
    return {};
  }
}

bool has_rows(const std::string& path) { return rows_in(read_file(path)).rows > 1; }

// A copy beside it, unless there is one already.
void keep(const std::string& path, const std::string& others) {
  const std::string text = read_file(path);
  std::error_code failure;
  int number = 1;
  while (fs::exists(kept_name(path, number), failure)) {
    if (fs::is_regular_file(kept_name(path, number), failure) &&
        read_file(kept_name(path, number)) == text) {
      return;
    }
    ++number;
  }
  write_file_atomically(kept_name(path, number), text);
  note(fmt::format("note: {} had {}: kept as {}", path, others, kept_name(path, number)));
}

}  // namespace

void write_row_keeping(const Output& out, const std::string& text, report::Format format,
                       const std::vector<std::string>& options) {
  std::error_code failure;
  const bool replaces_rows =
      !out.path().empty() && fs::is_regular_file(out.path(), failure) && has_rows(out.path());
  if (replaces_rows) {
    write_keeping(out, text, format, options);
  } else {
    out.write(text);
  }
}

void write_keeping(const Output& out, const std::string& text, report::Format format,
                   const std::vector<std::string>& options) {
  const std::string& path = out.path();
  std::error_code failure;
  const bool replaces = !path.empty() && fs::is_regular_file(path, failure) &&
                        fs::file_size(path, failure) > 0 && read_file(path) != text;
  std::string others;
  if (replaces && format != report::Format::csv) {
    others = "results that are not read back";
  } else if (replaces) {
    try {
      others = others_in(path, text, options);
    } catch (const Error&) {
      others = "no rows of this command";
    }
  }
  if (!others.empty()) keep(path, others);
  out.write(text);
}

void write_keeping_others(const Output& out, const std::string& text) {
  const std::string& path = out.path();
  std::error_code failure;
  if (!path.empty() && fs::is_regular_file(path, failure)) {
    const TextRows old = rows_in(read_file(path));
    const Cells fresh = rows_in(text).columns;
    const auto lost = std::find_if(old.columns.begin(), old.columns.end(),
                                   [&](const std::string& name) { return !contains(fresh, name); });
    if (old.rows > 1 && lost != old.columns.end()) {
      keep(path, fmt::format("a column '{}' that is not in this result", *lost));
    }
  }
  out.write(text);
}

std::vector<std::string> sweep_option_columns() {
  std::vector<std::string> names;
  for (const study::Column& column : study::result_columns()) {
    if (column.role == study::ColumnRole::option) names.push_back(column.name);
  }
  return names;
}

std::vector<std::string> train_option_columns() {
  std::vector<std::string> names;
  for (const job::JobOption& option : job::job_options()) names.push_back(option.column());
  names.insert(names.end(), {"software", "train_tokens", "gpu_hour_price"});
  return names;
}

}  // namespace moesim::tool
