#pragma once

#include <string>

#include "sim/report/formats.hpp"
#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// One line to stderr: stdout is for results alone.
void note(const std::string& text);

// While one lives, note() says each line once: of many runs that have the same to say.
class EachNoteOnce {
 public:
  EachNoteOnce();
  ~EachNoteOnce();
  EachNoteOnce(const EachNoteOnce&) = delete;  // note() knows one of them
  EachNoteOnce& operator=(const EachNoteOnce&) = delete;
};

// Where a result goes: a file, written whole or not at all, or stdout.
class Output {
 public:
  // `path` empty: stdout. Throws Error at once if the file could not be written.
  explicit Output(std::string path);
  // Throws Error if not all of it could be written, but not for a closed pipe (| head).
  void write(const std::string& content) const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Whether stdout is a pipe that was closed before all of a result was written.
bool reader_has_left();

// A help text on stdout; a reader that has seen enough (| head) is no error.
void show(const std::string& text);

// --format if typed, else what the name of the --out file says, else `fallback`.
report::Format chosen_format(const CommandLine& line, report::Format fallback);

Flag format_flag(const std::string& default_text = "table; csv or json if --out says so");
Flag out_flag();
Flag jobs_flag();
int chosen_jobs(const CommandLine& line);

}  // namespace moesim::tool
