#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "sim/shell/text.hpp"

namespace moesim::shell {
namespace {

constexpr std::size_t npos = std::string::npos;

// Reads the commands in "$(...)" for their brackets alone.
class Brackets {
 public:
  Brackets(const std::string& text, std::size_t from, int depth)
      : text_(text), at_(from), depth_(depth) {}

  std::size_t end() {
    constexpr int deepest = 50;
    constexpr std::size_t longest = 1 << 14;
    const std::size_t last = std::min(text_.size(), at_ + longest);
    if (depth_ > deepest) return npos;
    is_arithmetic_ = text_.compare(at_, 2, "((") == 0;
    while (at_ < last) {
      const std::size_t closed = take();
      if (closed != npos) return closed;
    }
    return npos;
  }

 private:
  char next() const { return at_ + 1 < text_.size() ? text_[at_ + 1] : '\0'; }

  // What stands there; of the last bracket its place.
  std::size_t take() {
    const char letter = text_[at_];
    if (letter == '\\') {
      at_ += 2;
    } else if (letter == '\'') {
      skip_to(text_.find('\'', at_ + 1));
    } else if (letter == '"') {
      take_double_quotes();
    } else if (letter == '`') {
      skip_to(backtick_end(text_, at_));
    } else if (letter == '$' && next() == '(') {
      skip_to(Brackets(text_, at_ + 1, depth_ + 1).end());
    } else if (letter == '$' && next() == '{') {
      at_ = behind_bracket(text_, at_ + 1);
    } else if (letter == '#' && is_begin_ && !is_arithmetic_) {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else if (letter == '<' && next() == '<' && !is_arithmetic_) {
      take_document_word();
    } else if (letter == '(' || letter == ')') {
      return take_bracket(letter);
    } else if (is_name(letter)) {
      take_word();
    } else {
      take_sign(letter);
    }
    return npos;
  }

  void skip_to(std::size_t place) {
    at_ = place == npos ? text_.size() : place + 1;
    is_begin_ = is_command_ = false;
  }

  void take_double_quotes() {
    for (++at_; at_ < text_.size() && text_[at_] != '"';) {
      if (text_[at_] == '\\') {
        at_ += 2;
      } else if (text_[at_] == '`') {
        skip_to(backtick_end(text_, at_));
      } else if (text_[at_] == '$' && next() == '(') {
        skip_to(Brackets(text_, at_ + 1, depth_ + 1).end());
      } else {
        ++at_;
      }
    }
    skip_to(at_);
  }

  std::size_t take_bracket(char letter) {
    const std::size_t place = at_++;
    is_begin_ = is_command_ = true;
    if (letter == '(') {
      open_.push_back('(');
    } else if (open_.back() == '(') {
      open_.pop_back();
      if (open_.empty()) return place;
    }
    return npos;
  }

  void take_word() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_name(text_[at_])) ++at_;
    const std::string word = text_.substr(begin, at_ - begin);
    const bool is_whole = is_begin_ && (at_ == text_.size() || is_space(text_[at_]) ||
                                        std::string_view(";&|)").find(text_[at_]) != npos);
    static const std::set<std::string> reserved = {"if",    "then",  "else", "elif",
                                                   "while", "until", "do",   "time"};
    if (is_whole && is_command_ && word == "case") {
      open_.push_back('c');
    } else if (is_whole && is_command_ && word == "esac" && open_.back() == 'c') {
      open_.pop_back();
    }
    const bool is_choice = word == "in" && open_.back() == 'c';
    is_command_ = is_whole && ((is_command_ && reserved.contains(word)) || is_choice);
    is_begin_ = false;
  }

  void take_sign(char letter) {
    ++at_;
    if (letter == '\n') {
      for (const std::string& word : documents_) skip_document(word);
      documents_.clear();
    }
    const bool ends = letter == '\n' || letter == ';' || letter == '&' || letter == '|';
    is_begin_ = ends || is_space(letter);
    const bool stays = is_space(letter) || letter == '!' || letter == '{';
    is_command_ = ends || (is_command_ && stays);
  }

  // "<<EOF", "<<-'EOF'": its text begins on the next line.
  void take_document_word() {
    at_ += 2;
    is_begin_ = is_command_ = false;
    if (at_ < text_.size() && text_[at_] == '<') {
      ++at_;
      return;
    }
    if (at_ < text_.size() && text_[at_] == '-') ++at_;
    at_ = std::min(text_.find_first_not_of(" \t", at_), text_.size());
    std::string word;
    for (; at_ < text_.size(); ++at_) {
      const bool is_quote = std::string_view("\"'\\").find(text_[at_]) != npos;
      if (!is_quote && !is_name(text_[at_])) break;
      if (!is_quote) word += text_[at_];
    }
    if (!word.empty()) documents_.push_back(word);
  }

  void skip_document(const std::string& word) {
    while (at_ < text_.size()) {
      const std::size_t begin = std::min(text_.find_first_not_of('\t', at_), text_.size());
      const std::size_t end = std::min(text_.find('\n', at_), text_.size());
      at_ = std::min(end + 1, text_.size());
      if (begin <= end && text_.compare(begin, end - begin, word) == 0) return;
    }
  }

  const std::string& text_;
  std::size_t at_;
  int depth_;                 // of "$(" in "$("
  std::vector<char> open_{};  // '(' and, of "case", 'c'
  std::vector<std::string> documents_{};
  bool is_begin_ = true;    // of a word
  bool is_command_ = true;  // a command begins
  bool is_arithmetic_ = false;
};

}  // namespace

std::size_t command_end(const std::string& text, std::size_t from) {
  return Brackets(text, from, 0).end();
}

std::size_t backtick_end(const std::string& text, std::size_t from) {
  constexpr std::size_t longest = 4096;
  const std::size_t end = std::min(text.size(), from + longest);
  for (std::size_t at = from + 1; at < end; ++at) {
    if (text[at] == '\\') {
      ++at;
    } else if (text[at] == '`') {
      return at;
    }
  }
  return npos;
}

std::size_t behind_bracket(const std::string& text, std::size_t from) {
  const char open = text[from];
  if (const std::size_t end = open == '(' ? command_end(text, from) : npos; end != npos) {
    return end + 1;
  }
  const char close = open == '(' ? ')' : '}';
  int depth = 0;
  for (std::size_t at = from; at < text.size(); ++at) {
    if (text[at] == open) ++depth;
    if (text[at] == close && --depth == 0) return at + 1;
  }
  return text.size();
}

}  // namespace moesim::shell
