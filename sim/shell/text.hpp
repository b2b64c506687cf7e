#pragma once

#include <cctype>
#include <cstddef>
#include <string>
#include <vector>

namespace moesim::shell {

inline bool is_space(char letter) { return std::isspace(static_cast<unsigned char>(letter)) != 0; }
inline bool is_name(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_';
}

// A text that remembers on which line of the script each of its letters stands.
struct Text {
  std::string letters;
  std::vector<int> lines;  // of each letter

  Text() = default;
  Text(const std::string& text, int line) : letters(text), lines(text.size(), line) {}
  static Text of_script(const std::string& script, int first_line = 1);

  std::size_t size() const { return letters.size(); }
  // The last one's behind the end, 1 of an empty text.
  int line_at(std::size_t at) const;
  void add(char letter, int line);
  void add(const Text& other);
  Text part(std::size_t begin, std::size_t end) const;
};

// The words of a text, which its spaces divide but for those in "$(...)", "`...`" and "${...}".
// `with_quotes`: and in quotes, which are taken off; they are letters where one has no end.
std::vector<Text> words_in(const Text& text, bool with_quotes);

// The text without the backslashes that keep a "$" from the shell that puts variables into a
// here-document.
Text without_backslashes(const Text& body);

// Where the ")" stands that closes the "(" of a "$(" at `from`; npos: nowhere near. Brackets in
// quotes, comments and here-documents are letters, and so is that behind a pattern of "case".
std::size_t command_end(const std::string& text, std::size_t from);
// Where the "`" stands that closes the one at `from`, npos: nowhere near.
std::size_t backtick_end(const std::string& text, std::size_t from);

// The place behind the bracket that closes the one, "(" or "{", at `from`; the end where none does.
std::size_t behind_bracket(const std::string& text, std::size_t from);

// An argument with two dashes in it, at its beginning or behind a space.
bool is_list(const std::string& text);
bool has_argument_behind_space(const std::string& text);

// Where the lines that a shell function's body has after its "{" at `begin` end, before the "}"
// that is indented as the definition at `definition`; npos where there is none.
std::size_t body_end(const std::string& script, std::size_t definition, std::size_t begin);

}  // namespace moesim::shell
