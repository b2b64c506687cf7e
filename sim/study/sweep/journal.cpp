#include "sim/study/sweep/journal.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"

namespace moesim::study {
namespace {

constexpr const char* heading = "moesim sweep journal 2 ";

// Restores every cell to the bit: JSON keeps apart whole numbers and figures, which it writes so
// that they read back exactly. An exact decimal is an array of its text.
nlohmann::json json_of(const Cell& cell) {
  if (const auto* flag = std::get_if<bool>(&cell)) return *flag;
  if (const auto* whole = std::get_if<std::int64_t>(&cell)) return *whole;
  if (const auto* figure = std::get_if<double>(&cell)) return *figure;
  if (const auto* decimal = std::get_if<Decimal>(&cell)) {
    return nlohmann::json::array({decimal->text()});
  }
  if (const auto* text = std::get_if<std::string>(&cell)) return *text;
  return nullptr;
}

Cell cell_of(const nlohmann::json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number_float()) return value.get<double>();
  if (value.is_array()) return Decimal::parse(value.at(0).get<std::string>(), "--resume");
  if (value.is_string()) return value.get<std::string>();
  return {};
}

std::string row_line(std::size_t index, const Row& row) {
  nlohmann::json cells = nlohmann::json::array();
  for (const Cell& cell : row) cells.push_back(json_of(cell));
  return nlohmann::json::array({index, std::move(cells)}).dump() + "\n";
}

}  // namespace

std::string journal_path(const std::string& out) {
  return out.empty() || out.starts_with("/dev/") ? "" : out + ".partial";
}

Journal::Journal(const std::string& path, const std::string& fingerprint, bool resume)
    : path_(path) {
  const std::string first_line = heading + fingerprint + "\n";
  if (resume && ::access(path.c_str(), F_OK) == 0) take_over(first_line);
  // Written anew from the rows that read back whole: a line cut short by a kill is dropped.
  std::string content = first_line;
  for (const auto& [index, row] : rows_) content += row_line(index, row);
  write_file_atomically(path, content);
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (descriptor_ < 0) {
    throw Error(fmt::format("{}: cannot write: {}", path, std::strerror(errno)));
  }
}

Journal::~Journal() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void Journal::take_over(const std::string& first_line) {
  const std::string content = read_file(path_);
  if (!content.starts_with(first_line)) {
    throw UsageError(fmt::format(
        "--resume: {} holds rows of a sweep with other options, documents or program version: give "
        "the options of that sweep, or leave --resume out to start anew",
        path_));
  }
  std::istringstream lines(content.substr(first_line.size()));
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json entry = nlohmann::json::parse(line, nullptr, false);
    const bool whole = entry.is_array() && entry.size() == 2 && entry[0].is_number_unsigned() &&
                       entry[1].is_array();
    if (!whole || lines.eof()) return;  // cut short: nothing that follows can be whole
    Row& row = rows_[entry[0].get<std::size_t>()];
    for (const nlohmann::json& value : entry[1]) row.push_back(cell_of(value));
  }
}

void Journal::add(std::size_t index, const Row& row) { append(row_line(index, row)); }

void Journal::append(const std::string& line) {
  std::size_t at = 0;
  while (at < line.size()) {
    const ssize_t written = ::write(descriptor_, line.data() + at, line.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      throw Error(
          fmt::format("{}: cannot save a finished scenario: {}", path_, std::strerror(errno)));
    }
    at += static_cast<std::size_t>(written);
  }
}

}  // namespace moesim::study
