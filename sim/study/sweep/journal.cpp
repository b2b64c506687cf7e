#include "sim/study/sweep/journal.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "sim/base/digest.hpp"
#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/formats/json_text.hpp"

namespace moesim::study {
namespace {

constexpr const char* heading = "moesim sweep journal 5 ";
// Even where a row ends each millisecond, few wait for a disk.
constexpr std::chrono::seconds sync_interval{1};

// JSON has no other texts; the name of a file may be one.
bool is_utf8(const std::string& text) {
  try {
    static_cast<void>(nlohmann::json(text).dump());
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

std::string hexadecimal(const std::string& text) {
  std::string digits;
  for (const char byte : text) {
    digits += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return digits;
}

std::optional<std::string> from_hexadecimal(const std::string& digits) {
  if (digits.size() % 2 != 0) return std::nullopt;
  std::string text;
  for (std::size_t at = 0; at < digits.size(); at += 2) {
    unsigned byte = 0;
    const char* const end = digits.data() + at + 2;
    const auto [stopped, error] = std::from_chars(digits.data() + at, end, byte, 16);
    if (error != std::errc() || stopped != end) return std::nullopt;
    text += static_cast<char>(byte);
  }
  return text;
}

// Restores every cell to the bit: JSON keeps apart whole numbers and figures, which it writes so
// that they read back exactly. An exact decimal is an array of its text, a text that is no UTF-8 an
// array of "hex" and its bytes.
nlohmann::json json_of(const Cell& cell) {
  if (const auto* flag = std::get_if<bool>(&cell)) return *flag;
  if (const auto* whole = std::get_if<std::int64_t>(&cell)) return *whole;
  if (const auto* figure = std::get_if<double>(&cell)) return *figure;
  if (const auto* decimal = std::get_if<Decimal>(&cell)) {
    return nlohmann::json::array({decimal->text()});
  }
  if (const auto* text = std::get_if<std::string>(&cell)) {
    if (is_utf8(*text)) return *text;
    return nlohmann::json::array({"hex", hexadecimal(*text)});
  }
  return nullptr;
}

// The cell that a value stands for; nothing for what json_of() does not write.
std::optional<Cell> cell_of(const nlohmann::json& value) {
  if (value.is_null()) return Cell();
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number_float()) return value.get<double>();
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array() || value.empty() || value.size() > 2) return std::nullopt;
  for (const nlohmann::json& part : value) {
    if (!part.is_string()) return std::nullopt;
  }
  if (value.size() == 2) return from_hexadecimal(value[1].get<std::string>());
  try {
    return Decimal::parse(value[0].get<std::string>(), "--resume");
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

// What an editor did to a journal that it saved, where that shows at the beginning; "": nothing.
std::string edited(const std::string& content) {
  constexpr std::string_view byte_order_marks[] = {"\xEF\xBB\xBF", "\xFF\xFE", "\xFE\xFF"};
  for (const std::string_view mark : byte_order_marks) {
    if (content.starts_with(mark)) return "begins with a byte order mark (BOM)";
  }
  const bool has_returns =
      content.starts_with(heading) && content.substr(0, content.find('\n')).ends_with('\r');
  return has_returns ? "has lines that end with CR LF" : "";
}

std::string checksum(std::size_t index, const std::string& cells) {
  return fmt::format("{:016x}", Digest().add(fmt::format("{} ", index)).add(cells).value());
}

// [index, number of cells, checksum of the index and the cells' text, cells]
std::string row_line(std::size_t index, const Row& row) {
  nlohmann::json cells = nlohmann::json::array();
  for (const Cell& cell : row) cells.push_back(json_of(cell));
  const std::string text = json_text(cells);
  return fmt::format("[{},{},\"{}\",{}]\n", index, row.size(), checksum(index, text), text);
}

// The row of a line as row_line() writes it; nothing where any of it was altered or cut off.
std::optional<std::pair<std::size_t, Row>> row_of(const std::string& line) {
  const nlohmann::json entry = parse_json_or_null(line);
  const bool whole =
      entry.is_array() && entry.size() == 4 && entry[0].is_number_unsigned() &&
      entry[1].is_number_unsigned() && entry[2].is_string() && entry[3].is_array() &&
      entry[3].size() == entry[1].get<std::size_t>() &&
      entry[2].get<std::string>() == checksum(entry[0].get<std::size_t>(), json_text(entry[3]));
  if (!whole) return std::nullopt;
  Row row;
  for (const nlohmann::json& value : entry[3]) {
    std::optional<Cell> cell = cell_of(value);
    if (!cell) return std::nullopt;
    row.push_back(std::move(*cell));
  }
  return std::pair(entry[0].get<std::size_t>(), std::move(row));
}

}  // namespace

std::string journal_path(const std::string& out) {
  return out.empty() || is_special_file(out) ? "" : written_path(out) + ".partial";
}

Journal::Journal(const std::string& path, const std::string& fingerprint, bool resume)
    : path_(path) {
  open_and_lock();
  try {
    const std::string first_line = heading + fingerprint + "\n";
    const std::string content = read_file(path_);
    const std::size_t first_end = content.find('\n');
    const bool has_rows = first_end != std::string::npos && first_end + 1 < content.size();
    if (has_rows && !resume) {
      throw UsageError(
          fmt::format("{} holds {} finished rows of an interrupted run: --resume continues it; "
                      "delete the file to start anew",
                      path_, std::count(content.begin(), content.end(), '\n') - 1));
    }
    // A line cut short by a kill is dropped.
    const bool is_new = content.empty() || (!has_rows && content.starts_with(heading));
    const std::size_t end = resume && !is_new ? take_over(content, first_line) : 0;
    if (::ftruncate(descriptor_, static_cast<off_t>(end)) != 0) {
      throw Error(fmt::format("{}: cannot write: {}", path_, std::strerror(errno)));
    }
    if (end == 0) append(first_line);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

Journal::~Journal() {
  if (descriptor_ < 0) return;
  static_cast<void>(::fdatasync(descriptor_));
  ::close(descriptor_);
}

// The sweep before may have ended, and removed the file, between the opening and the lock.
void Journal::open_and_lock() {
  constexpr int attempts = 100;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (descriptor_ < 0) {
      throw Error(fmt::format("{}: cannot write: {}", path_, std::strerror(errno)));
    }
    const bool locked = ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
    const int code = locked ? 0 : errno;
    // Some network file systems have no locks.
    if (!locked && code != ENOLCK && code != EOPNOTSUPP && code != ENOSYS) {
      ::close(descriptor_);
      descriptor_ = -1;
      if (code == EWOULDBLOCK) {
        throw UsageError(fmt::format(
            "{}: another run is writing it: wait for that one, or choose another --out", path_));
      }
      throw Error(fmt::format("{}: cannot lock: {}", path_, std::strerror(code)));
    }
    struct stat opened {};
    struct stat there {};
    const bool same = ::fstat(descriptor_, &opened) == 0 && ::stat(path_.c_str(), &there) == 0 &&
                      opened.st_ino == there.st_ino && opened.st_dev == there.st_dev;
    if (same) return;
    ::close(descriptor_);
    descriptor_ = -1;
  }
  throw Error(fmt::format("{}: cannot lock: other runs keep replacing it", path_));
}

std::size_t Journal::take_over(const std::string& content, const std::string& first_line) {
  if (const std::string change = edited(content); !change.empty()) {
    throw UsageError(
        fmt::format("--resume: {} {}, which another program than moesim wrote: save it as UTF-8 "
                    "without a BOM and with LF, or delete the file to start anew",
                    path_, change));
  }
  if (!content.starts_with(first_line)) {
    throw UsageError(
        fmt::format("--resume: {} holds rows of a run with other options, documents or program "
                    "version: give the "
                    "options of that run, or delete the file to start anew",
                    path_));
  }
  std::size_t end = first_line.size();
  for (;;) {
    const std::size_t newline = content.find('\n', end);
    if (newline == std::string::npos) return end;  // cut short
    auto row = row_of(content.substr(end, newline - end));
    if (!row) return end;  // altered: nothing that follows can be trusted
    rows_[row->first] = std::move(row->second);
    end = newline + 1;
  }
}

void Journal::add(std::size_t index, const Row& row) { append(row_line(index, row)); }

void Journal::append(const std::string& line) {
  std::size_t at = 0;
  while (at < line.size()) {
    const ssize_t written = ::write(descriptor_, line.data() + at, line.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      throw Error(fmt::format(
          "{}: cannot save a finished row: {}; the rows before it are kept: with space for more, "
          "--resume goes on after them",
          path_, std::strerror(errno)));
    }
    at += static_cast<std::size_t>(written);
  }
  // A kill loses nothing that was written; a power failure what is not on the disk.
  const auto now = std::chrono::steady_clock::now();
  if (now - synced_ < sync_interval) return;
  synced_ = now;
  static_cast<void>(::fdatasync(descriptor_));  // some file systems cannot
}

}  // namespace moesim::study
