#include "sim/shell/files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "sim/base/file.hpp"
#include "sim/shell/paths.hpp"

namespace moesim::shell {
namespace {

constexpr std::size_t most_files = 100;

// Whether a file, by its name, prepares programs and sets no arguments, such as ~/.bashrc.
bool is_environment(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  for (const std::string_view known :
       {"activate", "conda.sh", "modules.sh", "profile", ".profile", "setvars.sh"}) {
    if (name == known) return true;
  }
  return path.rfind("/etc/", 0) == 0 || name.rfind(".bash", 0) == 0;
}

}  // namespace

std::optional<std::string> file_of_script(const std::string& path) {
  constexpr std::uintmax_t largest = 1 << 20;  // bytes of a script
  std::error_code none;
  const bool is_one = std::filesystem::is_regular_file(path, none) &&
                      std::filesystem::file_size(path, none) <= largest;
  if (!is_one || none) return std::nullopt;
  try {
    return read_regular_file(path);
  } catch (const UnreadableFile&) {  // by permission
    return std::nullopt;
  }
}

Files::Files(std::string script, Read read) : read_(std::move(read)) {
  const std::string name = script.substr(script.rfind('/') + 1);
  files_.push_back({std::move(script), folder_of_script + ("/" + name)});
}

Text Files::add_script(const std::string& text) {
  files_.front().lines = static_cast<int>(std::count(text.begin(), text.end(), '\n')) + 1;
  return Text::of_script(text);
}

std::optional<Text> Files::read(const std::string& path, int line) {
  const std::string& script = files_.front().name;
  const auto slash = script.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : script.substr(0, slash);
  std::optional<std::string> text;
  // One beside the script is the script's own, whatever its name.
  const bool is_of_system = path.front() == '/' && is_environment(path);
  if (!read_ || files_.size() >= most_files || is_of_system) return std::nullopt;
  if (path.rfind(folder_of_script, 0) == 0) {
    text = read_(folder + path.substr(1));
  } else if (path.front() == '/') {
    text = read_(path);
  } else {  // it starts where the script is, or here
    text = read_(folder + "/" + path);
    if (!text) text = read_(path);
  }
  if (!text) return std::nullopt;
  const int first = files_.back().first + files_.back().lines;
  const auto name = path.find_first_not_of("@/.");
  const bool is_whole = path.front() == '/' || name == std::string::npos;
  files_.push_back({is_whole ? path : path.substr(name), path, first,
                    static_cast<int>(std::count(text->begin(), text->end(), '\n')) + 1, line});
  return Text::of_script(*text, first);
}

void Files::note_missing(const std::string& word, const std::optional<std::string>& path,
                         int line) {
  if (is_environment(path.value_or(word))) return;
  if (!path) {
    const std::string name = word == "<" ? "<(...)" : word;
    return note_once(
        fmt::format("{} ({}) is not known: what it has is not read", name, place(line)));
  }
  const bool is_of_script = path->size() > 2 && path->rfind(folder_of_script, 0) == 0;
  const std::string name = is_of_script ? path->substr(2) : *path;
  if (files_.size() >= most_files) {
    return note_once(fmt::format("{} ({}) is not read: of a script's files {} are at most", name,
                                 place(line), most_files));
  }
  note_once(fmt::format("{} ({}) is not found: what it has is not known", name, place(line)));
}

void Files::note_once(const std::string& note) {
  const bool is_new = std::find(not_read_.begin(), not_read_.end(), note) == not_read_.end();
  if (is_new) not_read_.push_back(note);
}

void Files::note_unknown_names(const std::string& text, int line) {
  note_once(fmt::format("{} ({}) is not known: what it sets is not read", text, place(line)));
}

void Files::leave(int line) {
  const auto found = std::find_if(files_.begin(), files_.end(),
                                  [&](const File& each) { return each.first == line; });
  if (found == files_.end()) return;
  not_read_.push_back(fmt::format("{} ({}) cannot be read: what it has is not known", found->name,
                                  place(found->named_at)));
  found->named_at = 0;
}

const Files::File& Files::file_of(int line) const {
  const File* found = &files_.front();
  for (const File& each : files_) {
    if (each.first <= line) found = &each;
  }
  return *found;
}

std::string Files::place(int line) const {
  const File& file = file_of(line);
  const std::string place = fmt::format("line {}", line - file.first + 1);
  return &file == &files_.front() ? place : place + " of " + file.name;
}

std::string Files::address(int line) const {
  const File& file = file_of(line);
  return fmt::format("{}:{}", file.name, line - file.first + 1);
}

void Files::add_fallback(const std::string& name, const std::string& usual) {
  fallbacks_.try_emplace(name, usual);
}

std::vector<std::string> Files::notes() const {
  std::vector<std::string> all;
  for (const File& each : files_) {
    if (each.named_at == 0) continue;
    const std::string note = fmt::format("{} ({}) is read too", each.name, place(each.named_at));
    if (std::find(all.begin(), all.end(), note) == all.end()) all.push_back(note);
  }
  all.insert(all.end(), not_read_.begin(), not_read_.end());
  return all;
}

}  // namespace moesim::shell
