#include "sim/shell/paths.hpp"

#include <filesystem>
#include <string_view>
#include <vector>

#include "sim/shell/text.hpp"

namespace moesim::shell {
namespace {

using Path = std::optional<std::string>;

// Whether a path begins with "@" or "/": what it says is not relative to the folder.
bool is_whole(const std::string& path) {
  return path.front() == '/' || path.front() == *folder_of_script;
}

std::string parent(const std::string& path) {
  const auto slash = path.rfind('/');
  const std::string name = path.substr(slash == std::string::npos ? 0 : slash + 1);
  if (name == ".." || name == "." || name == folder_of_script) return path + "/..";
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

class Reading {
 public:
  explicit Reading(const PathNames& names) : names_(names) {}

  Path whole(const std::string& text) { return inside(path(text)); }

 private:
  Path path(const std::string& text) {
    constexpr int deepest = 10;  // of commands and variables in one another
    if (depth_ == deepest) return std::nullopt;
    ++depth_;
    Path made = joined(text);
    --depth_;
    return made;
  }

  Path joined(const std::string& text) {
    std::string made;
    for (std::size_t at = 0; at < text.size();) {
      const char letter = text[at];
      Path part;
      if (letter == '$' && at + 1 < text.size()) {
        const std::size_t end = end_of(text, at);
        part = expansion(text.substr(at + 1, end - at - 1));
        at = end;
      } else if (std::string_view("$`*?[]{}()<>|&;~").find(letter) == std::string_view::npos) {
        if (letter != '"' && letter != '\'' && letter != '\\') part = std::string(1, letter);
        ++at;
        if (!part) continue;
      }
      if (!part) return std::nullopt;
      made += *part;
    }
    return made;
  }

  // Where the "$NAME", "${NAME}" or "$(COMMAND)" that begins at `begin` ends.
  static std::size_t end_of(const std::string& text, std::size_t begin) {
    if (text[begin + 1] == '(' || text[begin + 1] == '{') return behind_bracket(text, begin + 1);
    std::size_t end = begin + 1;
    while (end < text.size() && is_name(text[end])) ++end;
    return end;
  }

  // The path that an expansion stands for; `text` is without its "$".
  Path expansion(const std::string& text) {
    if (text.size() > 1 && text.front() == '(') return output(text.substr(1, text.size() - 2));
    std::string name =
        text.size() > 1 && text.front() == '{' ? text.substr(1, text.size() - 2) : text;
    constexpr std::string_view of_parent = "%/*";
    const bool is_parent =
        name.size() > of_parent.size() &&
        name.compare(name.size() - of_parent.size(), of_parent.size(), of_parent) == 0;
    if (is_parent) name.resize(name.size() - of_parent.size());
    Path found;
    if (name == "0") {
      found = names_.script;
    } else if (name == "BASH_SOURCE" || name == "BASH_SOURCE[0]") {
      found = names_.source;
    } else if (name == "PWD") {
      found = names_.working;
    } else if (const Path value = names_.value(name)) {
      found = path(*value);
    }
    return is_parent && found ? parent(*found) : found;
  }

  Path output(const std::string& command) {
    std::vector<std::string> words;
    for (const Text& word : words_in(Text(command, 1), true)) {
      const std::string& text = word.letters;
      const bool is_redirection = text.find('>') != std::string::npos;
      const bool is_of_redirection = text == "/dev/null";
      if (!is_redirection && !is_of_redirection && text.rfind('-', 0) != 0) words.push_back(text);
      if (text.size() > 1 && text.back() == ';') {
        words.back().pop_back();
        words.emplace_back("&&");
      }
    }
    if (words.size() == 1 && words[0] == "pwd") return names_.working;
    if (words.size() == 4 && words[0] == "cd" && words[2] == "&&" && words[3] == "pwd") {
      return whole(words[1]);
    }
    if (words.size() != 2) return std::nullopt;
    const Path found = path(words[1]);
    if (words[0] == "dirname" && found) return parent(*found);
    return words[0] == "realpath" || words[0] == "readlink" ? inside(found) : Path();
  }

  Path inside(const Path& path) const {
    if (!path || path->empty()) return std::nullopt;
    if (is_whole(*path)) return path;
    return names_.working ? Path(*names_.working + "/" + *path) : std::nullopt;
  }

  const PathNames& names_;
  int depth_ = 0;
};

}  // namespace

std::optional<std::string> resolved_path(const std::string& text, const PathNames& names) {
  const Path found = Reading(names).whole(text);
  if (!found) return std::nullopt;
  const auto normal = [](const std::string& path) {
    return std::filesystem::path(path).lexically_normal().string();
  };
  const bool is_of_script = found->front() == *folder_of_script;
  if (is_of_script && found->size() > 1) {
    return folder_of_script + ("/" + normal(found->substr(2)));  // "@/.." stays
  }
  return normal(*found);
}

}  // namespace moesim::shell
