#include "tools/moesim/kept_result.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/formats/csv.hpp"
#include "sim/job/job_options.hpp"
#include "sim/study/sweep/sweep.hpp"

namespace moesim::tool {
namespace {

namespace fs = std::filesystem;

using Cells = std::vector<std::string>;

// "rows.csv.old", or with a number where that is taken.
std::string kept_name(const std::string& path) {
  std::string name = path + ".old";
  std::error_code failure;
  for (int number = 2; fs::exists(name, failure); ++number) {
    name = fmt::format("{}.old{}", path, number);
  }
  return name;
}

bool has_result(const CsvTable& table, const Cells& row) {
  const std::size_t status = table.find("status");
  return status == CsvTable::npos || row[status] == "ok";
}

// What the file has and `text` has not: "3 rows that are not in this result"; "": nothing.
std::string others_in(const std::string& path, const std::string& text,
                      const std::vector<std::string>& options) {
  const CsvTable fresh = CsvTable::parse(text, "the result");
  const CsvTable old = CsvTable::load(path);
  std::vector<std::pair<std::size_t, std::size_t>> places;  // of an option in both
  for (const std::string& option : options) {
    const std::size_t there = old.find(option);
    const std::size_t here = fresh.find(option);
    if (there != CsvTable::npos && here != CsvTable::npos) places.emplace_back(there, here);
  }
  if (places.empty()) return "no rows of this command";
  std::set<Cells> known;
  for (const Cells& row : fresh.rows) {
    if (!has_result(fresh, row)) continue;
    Cells cells;
    for (const auto& [there, here] : places) cells.push_back(row[here]);
    known.insert(std::move(cells));
  }
  const auto others = std::count_if(old.rows.begin(), old.rows.end(), [&](const Cells& row) {
    Cells cells;
    for (const auto& [there, here] : places) cells.push_back(row[there]);
    return has_result(old, row) && known.count(cells) == 0;
  });
  if (others == 0) return "";
  return others == 1 ? "1 row that is not in this result"
                     : fmt::format("{} rows that are not in this result", others);
}

bool has_rows(const std::string& path) {
  try {
    return CsvTable::load(path).rows.size() > 1;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

void write_row_keeping(const Output& out, const std::string& text, report::Format format,
                       const std::vector<std::string>& options) {
  std::error_code failure;
  const bool replaces_rows = format == report::Format::csv && !out.path().empty() &&
                             fs::is_regular_file(out.path(), failure) && has_rows(out.path());
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
  if (!others.empty()) {
    const std::string kept = kept_name(path);
    write_file_atomically(kept, read_file(path));
    note(fmt::format("note: {} had {}: kept as {}", path, others, kept));
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
  return names;
}

}  // namespace moesim::tool
