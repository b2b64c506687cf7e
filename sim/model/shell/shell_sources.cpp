#include "sim/model/shell/shell_paths.hpp"
#include "sim/model/shell/shell_reader.hpp"

namespace moesim::model {

Truth ShellReader::source(const std::vector<ShellWord>& given) {
  if (given.size() < 2 || nesting_ == deepest || !is_called_) return Truth::maybe;
  const int line = given.front().line;
  const std::optional<ShellText> text = text_of(given[1], line);
  if (!text) {
    whole_.files.note_missing(given[1].text, path_of(given[1].text, given[1].line), line);
    return Truth::maybe;
  }
  ShellValue rest{{}, true};
  for (std::size_t word = 2; word < given.size(); ++word) {
    rest.words.emplace_back(given[word].text, given[word].line);
  }
  const std::size_t commands = whole_.commands.size();
  const std::shared_ptr<ShellVariables> before = variables_;
  try {
    return read_in_place({*text}, rest.words.empty() ? nullptr : &rest, false);
  } catch (const OpenQuote&) {
    whole_.commands.resize(commands);
    variables_ = before;
    whole_.files.leave(text->line_at(0));
    return Truth::maybe;
  }
}

void ShellReader::change_folder(const std::vector<ShellWord>& given) {
  const bool has_one = given.size() > 1;
  const auto path = has_one ? path_of(given[1].text, given[1].line) : std::nullopt;
  replace(working_folder, {{ShellText(path.value_or(""), line())}});
}

std::optional<ShellText> ShellReader::text_of(const ShellWord& name, int line) {
  const std::optional<std::string> path = path_of(name.text, name.line);
  return path ? whole_.files.read(*path, line) : std::nullopt;
}

std::optional<std::string> ShellReader::path_of(const std::string& text, int line) {
  const std::optional<ShellValue> working = found(working_folder);
  ShellPathNames names{whole_.files.path_of(1), whole_.files.path_of(line), ".", nullptr};
  if (working) names.working = working->text();
  if (names.working == "") names.working = std::nullopt;
  names.value = [this](const std::string& name) -> std::optional<std::string> {
    const std::optional<ShellValue> known = found(name);
    return known && !known->is_unset && !known->is_lost && !known->is_array
               ? std::optional(known->text())
               : std::nullopt;
  };
  return shell_path(text, names);
}

}  // namespace moesim::model
