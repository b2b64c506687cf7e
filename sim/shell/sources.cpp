#include "sim/shell/paths.hpp"
#include "sim/shell/reader.hpp"

namespace moesim::shell {

Truth Reader::source(const std::vector<Word>& given) {
  if (given.size() < 2 || nesting_ == deepest || !is_called_) return Truth::maybe;
  const int line = given.front().line;
  const std::optional<Text> text = text_of(given[1], line);
  if (!text) {
    whole_.files.note_missing(given[1].text, path_of(given[1].text, given[1].line), line);
    return Truth::maybe;
  }
  Value rest{{}, true};
  for (std::size_t word = 2; word < given.size(); ++word) {
    rest.words.emplace_back(given[word].text, given[word].line);
  }
  const std::size_t commands = whole_.commands.size();
  const std::shared_ptr<Variables> before = variables_;
  try {
    return read_in_place({*text}, rest.words.empty() ? nullptr : &rest, false);
  } catch (const OpenQuote&) {
    whole_.commands.resize(commands);
    variables_ = before;
    whole_.files.leave(text->line_at(0));
    return Truth::maybe;
  }
}

void Reader::change_folder(const std::vector<Word>& given) {
  const bool has_one = given.size() > 1;
  const auto path = has_one ? path_of(given[1].text, given[1].line) : std::nullopt;
  replace(working_folder, {{Text(path.value_or(""), line())}});
}

std::optional<Text> Reader::text_of(const Word& name, int line) {
  const std::optional<std::string> path = path_of(name.text, name.line);
  return path ? whole_.files.read(*path, line) : std::nullopt;
}

std::optional<std::string> Reader::path_of(const std::string& text, int line) {
  const std::optional<Value> working = found(working_folder);
  PathNames names{whole_.files.path_of(1), whole_.files.path_of(line), ".", nullptr};
  if (working) names.working = working->text();
  if (names.working == "") names.working = std::nullopt;
  names.value = [this](const std::string& name) -> std::optional<std::string> {
    const std::optional<Value> known = found(name);
    return known && !known->is_unset && !known->is_lost && !known->is_array
               ? std::optional(known->text())
               : std::nullopt;
  };
  return resolved_path(text, names);
}

}  // namespace moesim::shell
