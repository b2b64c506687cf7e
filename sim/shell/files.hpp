#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/shell/text.hpp"

namespace moesim::shell {

// A script and the files that it sources. A line has one number in all of them: those of a file
// follow those of the file before.
class Files {
 public:
  // The text of the file of that path; nothing where there is none that can be read.
  using Read = std::function<std::optional<std::string>(const std::string& path)>;

  // `script`: the path that it was asked for by. Without `read` no file is there.
  explicit Files(std::string script = "", Read read = nullptr);

  Text add_script(const std::string& text);
  // A file by its path as resolved_path() gives it, which the script names on that line. Nothing
  // where it is not there.
  std::optional<Text> read(const std::string& path, int line);
  // "export $(...)", of which it is not known what it sets.
  void note_unknown_names(const std::string& text, int line);
  // A file that read does not give: as the script writes it, and its path where that is known.
  void note_missing(const std::string& word, const std::optional<std::string>& path, int line);
  // The file that begins on that line has what no script has.
  void leave(int line);

  // The path as resolved_path() gives it.
  const std::string& path_of(int line) const { return file_of(line).path; }
  std::string place(int line) const;    // "line 3", "line 3 of conf/a.sh"
  std::string address(int line) const;  // "run.sh:3", "conf/a.sh:3"
  // "${NAME:-DEFAULT}" of a variable that no line sets, as the shell that runs the script may have.
  void add_fallback(const std::string& name, const std::string& usual);
  // The first of each name.
  const std::map<std::string, std::string>& fallbacks() const { return fallbacks_; }

  // Which files are read and which are not.
  std::vector<std::string> notes() const;

 private:
  struct File {
    std::string name;  // by which it is told of
    std::string path;
    int first = 1;     // its first line, of all that are read one after another
    int lines = 0;     // how many it has
    int named_at = 0;  // the line that names it
  };

  const File& file_of(int line) const;
  void note_once(const std::string& note);

  Read read_;
  std::vector<File> files_;
  std::vector<std::string> not_read_;  // a note of each file
  std::map<std::string, std::string> fallbacks_;
};

// A Files::Read of files on the disk, of 1 MiB at most.
std::optional<std::string> file_of_script(const std::string& path);

}  // namespace moesim::shell
