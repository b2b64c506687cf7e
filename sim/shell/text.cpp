#include "sim/shell/text.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

namespace moesim::shell {
namespace {

bool begins_argument(const std::string& text, std::size_t at) {
  return text.compare(at, 2, "--") == 0 && at + 2 < text.size() &&
         std::isalpha(static_cast<unsigned char>(text[at + 2])) != 0;
}

// The place behind the quotes at `at`, or behind the letter that a backslash there quotes; `at`
// itself for another letter; npos where the quote has no end before `end`.
std::size_t behind_quoted(const std::string& text, std::size_t at, std::size_t end) {
  const char quote = text[at];
  if (quote == '\\') return at + 2;
  if (quote != '"' && quote != '\'') return at;
  for (++at; at < end; ++at) {
    if (text[at] == quote) return at + 1;
    if (text[at] == '\\' && quote == '"') ++at;
  }
  return std::string::npos;
}

// Whether each quote outside of comments has an end.
bool closes_quotes(const std::string& text, std::size_t begin, std::size_t end) {
  for (std::size_t at = begin; at < end;) {
    const std::size_t behind = behind_quoted(text, at, end);
    if (behind == std::string::npos) return false;
    const bool is_comment = text[at] == '#' && is_space(text[at - 1]);
    at = is_comment ? std::min(text.find('\n', at), end) : std::max(behind, at + 1);
  }
  return true;
}

// Where the "}" of a body stands that begins behind its "{" on the same line; npos: on another.
std::size_t end_on_line(const std::string& script, std::size_t begin, std::size_t line_end) {
  constexpr std::string_view behind_word = " \t\r;&|)";
  constexpr std::size_t longest = 1 << 14;
  const std::size_t end = std::min(line_end, begin + longest);
  int depth = 1;
  for (std::size_t at = begin; at < end;) {
    const std::size_t behind = behind_quoted(script, at, end);
    if (behind != at) {
      at = behind;  // npos, where the quote goes on, ends the loop
      continue;
    }
    const char letter = script[at];
    const char before = script[at - 1];
    const bool is_word =
        (is_space(before) || before == ';') &&
        (at + 1 == line_end || behind_word.find(script[at + 1]) != std::string::npos);
    if (letter == '#' && is_space(before)) return std::string::npos;
    if (letter == '{' && is_word) ++depth;
    if (letter == '}' && is_word && --depth == 0) return at;
    ++at;
  }
  return std::string::npos;
}

}  // namespace

Text Text::of_script(const std::string& script, int first_line) {
  Text text;
  text.letters = script;
  text.lines.reserve(script.size());
  int line = first_line;
  for (const char letter : script) {
    text.lines.push_back(line);
    if (letter == '\n') ++line;
  }
  return text;
}

int Text::line_at(std::size_t at) const {
  if (lines.empty()) return 1;
  return at < lines.size() ? lines[at] : lines.back();
}

void Text::add(char letter, int line) {
  letters += letter;
  lines.push_back(line);
}

void Text::add(const Text& other) {
  letters += other.letters;
  lines.insert(lines.end(), other.lines.begin(), other.lines.end());
}

Text Text::part(std::size_t begin, std::size_t end) const {
  Text made;
  made.letters = letters.substr(begin, end - begin);
  made.lines.assign(lines.begin() + static_cast<std::ptrdiff_t>(begin),
                    lines.begin() + static_cast<std::ptrdiff_t>(begin + made.size()));
  return made;
}

std::vector<Text> words_in(const Text& text, bool with_quotes) {
  std::vector<Text> words;
  Text word;
  bool is_word = false;
  char quote = 0;
  const auto is_quote = [&](char letter) {
    return with_quotes && (quote == 0 ? letter == '"' || letter == '\'' : letter == quote);
  };
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char letter = text.letters[at];
    const char next = at + 1 < text.size() ? text.letters[at + 1] : '\0';
    if (is_quote(letter)) {
      quote = quote == 0 ? letter : '\0';
      is_word = true;
    } else if (letter == '$' && (next == '(' || next == '{')) {
      const std::size_t end = behind_bracket(text.letters, at + 1);
      word.add(text.part(at, end));
      is_word = true;
      at = end - 1;
    } else if (const auto end = letter == '`' ? backtick_end(text.letters, at) : std::string::npos;
               end != std::string::npos) {
      word.add(text.part(at, end + 1));
      is_word = true;
      at = end;
    } else if (quote != 0 || !is_space(letter)) {
      word.add(letter, text.lines[at]);
      is_word = true;
    } else if (is_word) {
      words.push_back(std::exchange(word, {}));
      is_word = false;
    }
  }
  if (quote != 0) return words_in(text, false);
  if (is_word) words.push_back(std::move(word));
  return words;
}

Text without_backslashes(const Text& body) {
  Text made;
  for (std::size_t from = 0; from < body.size(); ++from) {
    const char after = from + 1 < body.size() ? body.letters[from + 1] : '\0';
    const bool is_sign = after == '$' || after == '`' || after == '\\';
    if (body.letters[from] == '\\' && is_sign) ++from;
    made.add(body.letters[from], body.lines[from]);
  }
  return made;
}

bool is_list(const std::string& text) {
  return text.find("$(") != 0 && (begins_argument(text, 0) || has_argument_behind_space(text));
}

bool has_argument_behind_space(const std::string& text) {
  for (auto at = text.find("--", 1); at != std::string::npos; at = text.find("--", at + 2)) {
    if (is_space(text[at - 1]) && begins_argument(text, at)) return true;
  }
  return false;
}

std::size_t body_end(const std::string& script, std::size_t definition, std::size_t begin) {
  constexpr int most = 20;  // lines that may be it
  const auto line_end = [&](std::size_t at) {
    return std::min(script.find('\n', at), script.size());
  };
  std::size_t last = line_end(begin);
  if (const auto end = end_on_line(script, begin, last); end != std::string::npos) return end;
  while (last > begin && (is_space(script[last - 1]) || script[last - 1] == ';')) --last;
  if (last > begin && script[last - 1] == '}' && closes_quotes(script, begin, last))
    return last - 1;
  const auto line = definition == 0 ? std::string::npos : script.rfind('\n', definition - 1);
  const std::size_t start = line == std::string::npos ? 0 : line + 1;
  std::size_t indent = start;
  while (indent < definition && is_space(script[indent])) ++indent;
  const std::string end = "\n" + script.substr(start, indent - start) + "}";
  auto at = script.find(end, begin);
  for (int tried = 0; at != std::string::npos && tried < most; ++tried) {
    if (closes_quotes(script, begin, at)) return at + end.size() - 1;
    at = script.find(end, at + 1);
  }
  // At the end of another line.
  last = line_end(begin);
  for (int tried = 0; last < script.size() && tried < most; ++tried) {
    last = line_end(last + 1);
    const bool ends =
        script[last - 1] == '}' && (is_space(script[last - 2]) || script[last - 2] == ';');
    if (ends && closes_quotes(script, begin, last)) return last - 1;
  }
  return std::string::npos;
}

}  // namespace moesim::shell
