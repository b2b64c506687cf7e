#include "sim/shell/conditions.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include "sim/base/text.hpp"

namespace moesim::shell {
namespace {

constexpr std::string_view signs_of_patterns = "*?[]\\()|+@!^.{}";

// Where the set of letters that begins at "[" ends, behind its "]"; npos without one.
std::size_t set_end(const std::string& pattern, std::size_t begin) {
  std::size_t at = begin + 1;
  if (at < pattern.size() && (pattern[at] == '!' || pattern[at] == '^')) ++at;
  if (at < pattern.size() && pattern[at] == ']') ++at;
  at = pattern.find(']', at);
  return at == std::string::npos ? at : at + 1;
}

bool is_in_set(char letter, const std::string& pattern, std::size_t begin, std::size_t end) {
  std::size_t at = begin + 1;
  const bool is_other = pattern[at] == '!' || pattern[at] == '^';
  if (is_other) ++at;
  bool found = false;
  for (; at + 1 < end; ++at) {
    if (at + 3 < end && pattern[at + 1] == '-') {
      found = found || (pattern[at] <= letter && letter <= pattern[at + 2]);
      at += 2;
    } else {
      found = found || pattern[at] == letter;
    }
  }
  return found != is_other;
}

// The letter behind the part of the pattern at `at` if that part takes `letter`, else 0.
std::size_t taken_by(const std::string& pattern, std::size_t at, char letter) {
  if (at >= pattern.size()) return 0;
  if (pattern[at] == '?') return at + 1;
  if (pattern[at] == '[') {
    const std::size_t end = set_end(pattern, at);
    if (end != std::string::npos) return is_in_set(letter, pattern, at, end) ? end : 0;
  }
  const std::size_t place = pattern[at] == '\\' && at + 1 < pattern.size() ? at + 1 : at;
  return pattern[place] == letter ? place + 1 : 0;
}

// A star takes as little as it can: of two, only the last may have to take more.
bool is_as(const std::string& text, const std::string& pattern) {
  std::size_t at = 0;
  std::size_t in_pattern = 0;
  std::size_t star = std::string::npos;
  std::size_t behind = 0;
  while (at < text.size()) {
    if (in_pattern < pattern.size() && pattern[in_pattern] == '*') {
      star = in_pattern++;
      behind = at;
    } else if (const auto next = taken_by(pattern, in_pattern, text[at]); next > 0) {
      in_pattern = next;
      ++at;
    } else if (star != std::string::npos) {
      in_pattern = star + 1;
      at = ++behind;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', in_pattern) == std::string::npos;
}

// Whether a pattern has groups: "+(...)", "@(...)" and the like.
bool has_groups(const std::string& pattern) {
  for (std::size_t at = 0; at < pattern.size(); ++at) {
    if (pattern[at] == '\\') {
      ++at;
    } else if (pattern[at] == '(') {
      return true;
    }
  }
  return false;
}

// "^TEXT$" with letters that stand for themselves; of others nothing is known.
Truth finds(const std::string& text, const std::string& expression) {
  std::string letters;
  bool is_plain = true;
  const bool at_begin = expression.rfind('^', 0) == 0;
  const bool at_end = expression.size() > 1 && expression.back() == '$' &&
                      expression[expression.size() - 2] != '\\';
  for (std::size_t at = at_begin ? 1 : 0; at < expression.size() - (at_end ? 1 : 0); ++at) {
    const char letter = expression[at];
    if (letter == '\\' && at + 1 < expression.size()) {
      letters += expression[++at];
    } else {
      is_plain = is_plain && std::string_view(".[]{}()*+?|^$`").find(letter) == std::string::npos;
      letters += letter;
    }
  }
  if (!is_plain || !is_known(text)) return Truth::maybe;
  if (at_begin && at_end) return truth_of(text == letters);
  if (at_begin) return truth_of(text.rfind(letters, 0) == 0);
  if (!at_end) return truth_of(text.find(letters) != std::string::npos);
  return truth_of(text.size() >= letters.size() &&
                  text.compare(text.size() - letters.size(), letters.size(), letters) == 0);
}

class Condition {
 public:
  Condition(const std::vector<ConditionWord>& words, const ConditionRules& rules)
      : words_(words), rules_(rules) {}

  Truth value() {
    if (words_.empty()) return Truth::no;
    const Truth all = any();
    if (at_ == words_.size() && !is_wrong_) return all;
    // "[ = 1 ]", of a variable that is empty, is an error, which is not true.
    const bool knows = std::all_of(words_.begin(), words_.end(),
                                   [](const auto& word) { return is_known(word.text); });
    return knows && !rules_.is_double ? Truth::no : Truth::maybe;
  }

 private:
  bool is_at(std::string_view sign, std::string_view letter) const {
    if (at_ >= words_.size()) return false;
    if (rules_.is_double) return words_[at_].is_sign && words_[at_].text == sign;
    return words_[at_].text == letter;
  }

  Truth any() {
    Truth value = all();
    while (is_at("||", "-o")) {
      ++at_;
      value = either(value, all());
    }
    return value;
  }

  Truth all() {
    Truth value = one();
    while (is_at("&&", "-a")) {
      ++at_;
      value = both(value, one());
    }
    return value;
  }

  Truth one() {
    bool is_opposite = false;
    while (is_at("!", "!") && !is_binary(at_ + 1) && at_ + 1 < words_.size()) {
      is_opposite = !is_opposite;
      ++at_;
    }
    const Truth value = is_at("(", "(") && !is_binary(at_ + 1) ? in_brackets() : test();
    return is_opposite ? opposite(value) : value;
  }

  Truth in_brackets() {
    constexpr int deepest = 50;
    if (++depth_ > deepest) return failed();
    ++at_;
    const Truth value = any();
    if (!is_at(")", ")")) return failed();
    ++at_;
    --depth_;
    return value;
  }

  Truth failed() {
    is_wrong_ = true;
    return Truth::maybe;
  }

  // Whether the word there is an operator between two.
  bool is_binary(std::size_t at) const {
    constexpr std::array known = {"=",   "==",  "!=",  "<",   ">",   "=~",  "-eq", "-ne",
                                  "-lt", "-le", "-gt", "-ge", "-ef", "-nt", "-ot"};
    if (at + 1 >= words_.size() || words_[at].is_sign) return false;
    return std::find(known.begin(), known.end(), words_[at].text) != known.end();
  }

  static bool is_unary(const std::string& word) {
    return word.size() == 2 && word[0] == '-' &&
           std::string_view("abcdefghknoprstuvwxzGLNOS").find(word[1]) != std::string_view::npos;
  }

  Truth test() {
    if (at_ >= words_.size()) return failed();
    if (is_binary(at_ + 1)) {
      at_ += 3;
      return compared(words_[at_ - 3], words_[at_ - 2].text, words_[at_ - 1]);
    }
    const ConditionWord& first = words_[at_++];
    if (is_unary(first.text) && at_ < words_.size() && !words_[at_].is_sign) {
      return tested(first.text[1], words_[at_++].text);
    }
    if (first.is_sign) return failed();
    return is_known(first.text) ? truth_of(!first.text.empty()) : Truth::maybe;
  }

  Truth tested(char by, const std::string& word) const {
    if (by == 'v') return rules_.is_set(word) ? Truth::yes : Truth::maybe;
    if ((by != 'z' && by != 'n') || !is_known(word)) return Truth::maybe;
    return truth_of(word.empty() == (by == 'z'));
  }

  Truth compared(const ConditionWord& one, const std::string& by,
                 const ConditionWord& other) const {
    if (by == "-ef" || by == "-nt" || by == "-ot") return Truth::maybe;  // of files
    if (by == "=~") return finds(one.text, other.pattern);
    if (by[0] == '-') return in_numbers(one.text, by, other.text);
    if (!is_known(one.text) || !is_known(other.text)) return Truth::maybe;
    if (by == "<") return truth_of(one.text < other.text);
    if (by == ">") return truth_of(one.text > other.text);
    const Truth equal =
        rules_.is_double ? matches(one.text, other.pattern) : truth_of(one.text == other.text);
    return by == "!=" ? opposite(equal) : equal;
  }

  Truth in_numbers(const std::string& one, const std::string& by, const std::string& other) const {
    if (!is_known(one) || !is_known(other)) return Truth::maybe;
    const auto number = [&](const std::string& text) -> std::optional<std::int64_t> {
      if (!rules_.is_double) return parse_number<std::int64_t>(text);
      return text.empty() ? 0 : rules_.number(text);
    };
    const auto left = number(one);
    const auto right = number(other);
    // "[ x -eq 1 ]" is an error, which is not true; an expression may have more to it.
    if (!left || !right) return rules_.is_double ? Truth::maybe : Truth::no;
    if (by == "-eq") return truth_of(*left == *right);
    if (by == "-ne") return truth_of(*left != *right);
    if (by == "-lt") return truth_of(*left < *right);
    if (by == "-le") return truth_of(*left <= *right);
    if (by == "-gt") return truth_of(*left > *right);
    return truth_of(*left >= *right);  // -ge
  }

  const std::vector<ConditionWord>& words_;
  const ConditionRules& rules_;
  std::size_t at_ = 0;
  int depth_ = 0;
  bool is_wrong_ = false;
};

}  // namespace

Truth condition_of(const std::vector<ConditionWord>& words, const ConditionRules& rules) {
  return Condition(words, rules).value();
}

bool is_known(const std::string& text) {
  return text.find('$') == std::string::npos && text.find('`') == std::string::npos;
}

Truth matches(const std::string& text, const std::string& pattern) {
  if (pattern == "*") return Truth::yes;
  if (!is_known(text) || !is_known(pattern) || has_groups(pattern)) return Truth::maybe;
  return truth_of(is_as(text, pattern));
}

std::string quoted_pattern(const std::string& text) {
  std::string made;
  for (const char letter : text) {
    if (signs_of_patterns.find(letter) != std::string_view::npos) made += '\\';
    made += letter;
  }
  return made;
}

}  // namespace moesim::shell
