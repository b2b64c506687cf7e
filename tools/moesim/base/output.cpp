#include "tools/moesim/base/output.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/parallel.hpp"
#include "sim/base/text.hpp"
#include "sim/study/sweep/sweep.hpp"
#include "tools/moesim/base/notes_off.hpp"

namespace moesim::tool {

namespace {

// What the one command of this process has said: note() has no owner that could keep it.
struct Said {
  std::mutex lock;
  bool once = false;
  bool off = false;
  std::set<std::string> lines;
};

Said& said() {
  static Said lines;
  return lines;
}

bool is_new(const std::string& line) {
  const std::lock_guard hold(said().lock);
  if (said().off) return false;
  return !said().once || said().lines.insert(line).second;
}

}  // namespace

EachNoteOnce::EachNoteOnce() {
  const std::lock_guard hold(said().lock);
  said().once = true;
}

EachNoteOnce::~EachNoteOnce() {
  const std::lock_guard hold(said().lock);
  said().once = false;
  said().lines.clear();
}

NotesOff::NotesOff() {
  const std::lock_guard hold(said().lock);
  said().off = true;
}

NotesOff::~NotesOff() {
  const std::lock_guard hold(said().lock);
  said().off = false;
}

void note(const std::string& text) {
  const std::string line = printable(text) + "\n";
  if (!is_new(line)) return;
  // Nothing is left to tell it to if stderr is gone.
  static_cast<void>(std::fwrite(line.data(), 1, line.size(), stderr));
}

Output::Output(std::string path) : path_(std::move(path)) {
  if (!path_.empty()) check_writable(path_);
}

namespace {

// main asks for it after the command, whose other files are to be written all the same.
bool reader_left = false;

// The error number if not all of it could be written, else 0.
int print(const std::string& text) {
  const bool terminal = ::isatty(STDOUT_FILENO) != 0;
  const std::string escaped = terminal ? printable(text) : "";
  const std::string& shown = terminal ? escaped : text;
  const bool whole = std::fwrite(shown.data(), 1, shown.size(), stdout) == shown.size();
  return whole && std::fflush(stdout) == 0 ? 0 : errno;
}

void check_printed(int error) {
  if (error == 0) return;
  throw Error(
      fmt::format("stdout: cannot write the result: {}; try --out FILE", std::strerror(error)));
}

}  // namespace

void show(const std::string& text) {
  if (const int error = print(text); error != EPIPE) check_printed(error);
}

void Output::write(const std::string& content) const {
  if (!path_.empty()) {
    write_file_atomically(path_, content);
    return;
  }
  const int error = print(content);
  if (error == EPIPE) {
    reader_left = true;
  } else {
    check_printed(error);
  }
}

bool reader_has_left() { return reader_left; }

report::Format chosen_format(const CommandLine& line, report::Format fallback) {
  if (line.has("format")) return report::parse_format(line.get("format"));
  const std::string out = line.get("out");
  for (const char* picture : {".png", ".svg", ".pdf", ".html", ".jpg"}) {
    if (!out.ends_with(picture)) continue;
    throw UsageError(fmt::format(
        "--out {}: the result is a table, not a chart: write a .csv and draw it with moesim plot",
        out));
  }
  if (out.ends_with(".csv")) return report::Format::csv;
  if (out.ends_with(".json")) return report::Format::json;
  return fallback;
}

Flag format_flag(const std::string& default_text) {
  return with_words({"format", "NAME", default_text, "table, csv or json"},
                    words_in<report::format_names>);
}

Flag out_flag() { return {"out", "FILE", "stdout", "where the result goes"}; }

Flag jobs_flag() { return {"jobs", "N", "all cores", "threads; the result does not depend on it"}; }

int chosen_jobs(const CommandLine& line) {
  if (line.has("jobs")) {
    return static_cast<int>(parse_whole("--jobs", line.get("jobs"), 1, study::most_jobs));
  }
  return core_count();
}

}  // namespace moesim::tool
