#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include "sim/base/text.hpp"
#include "sim/shell/arithmetic.hpp"
#include "sim/shell/reader.hpp"

namespace moesim::shell {
namespace {

// The parts of "A = 1, B = (C, 2)" between commas that no bracket holds.
std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char letter : text) {
    if (letter == '(') ++depth;
    if (letter == ')') --depth;
    if (letter == ',' && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += letter;
    }
  }
  return parts;
}

// Whether "= 1", "+= 1", "++" or "[...] = 1" is behind the name.
bool begins_change(const std::string& text, std::size_t behind_name) {
  const std::size_t at = std::min(text.find_first_not_of(" \t\n", behind_name), text.size());
  if (text.compare(at, 1, "[") == 0 || text.compare(at, 2, "++") == 0 ||
      text.compare(at, 2, "--") == 0) {
    return true;
  }
  for (const std::string_view by :
       {"=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "^=", "|="}) {
    if (text.compare(at, by.size(), by) == 0) return text.compare(at, 2, "==") != 0;
  }
  return false;
}

}  // namespace

bool Reader::begins_command() const { return program().empty() && before_.empty(); }

ConditionRules Reader::rules(bool is_double) {
  return {is_double, [this](const std::string& text) { return number(Text(text, line())); },
          [this](const std::string& name) {
            const auto known = found(name.substr(0, name.find('[')));
            return known && !known->is_unset && !known->is_lost;
          }};
}

Truth Reader::tested(const std::vector<Word>& given) {
  std::vector<ConditionWord> all;
  bool is_closed = given.front().text == "test";
  for (std::size_t word = 1; word < given.size(); ++word) {
    const std::string& text = given[word].text;
    if (given.front().text == "[" && text == "]") {
      is_closed = true;
      break;
    }
    all.push_back({text});
  }
  return is_closed ? condition_of(all, rules(false)) : Truth::maybe;
}

void Reader::take_double_brackets() {
  if (!is_begun_) begun_at_ = at_;
  words().push_back({"[[", line()});
  at_ += 2;
  std::vector<ConditionWord> all;
  bool is_pattern = false;
  bool is_closed = false;
  while (at_ < script_.size() && !is_closed) {
    const char letter = here();
    const bool is_joint = (letter == '&' || letter == '|') && next() == letter;
    if (letter == '\\' && next() == '\n') {
      at_ += 2;
    } else if (is_space(letter)) {
      ++at_;
    } else if (letter == ']' && next() == ']' && !is_pattern) {
      is_closed = true;
      at_ += 2;
    } else if (is_joint || (!is_pattern && (letter == '(' || letter == ')'))) {
      const std::size_t size = is_joint ? 2 : 1;
      all.push_back({script_.letters.substr(at_, size), "", true});
      at_ += size;
    } else if (letter == ';' || letter == '&' || letter == '|') {
      break;
    } else {
      const std::size_t begin = at_;
      all.push_back(take_pattern(false));
      const std::string& text = all.back().text;
      if (at_ == begin) ++at_;
      all.back().is_sign = text == "!" && script_.letters[begin] == '!';
      is_pattern = !is_pattern && (text == "=" || text == "==" || text == "!=" || text == "=~");
    }
  }
  pending_ = is_closed && !runs_not() ? condition_of(all, rules(true)) : Truth::maybe;
}

ConditionWord Reader::take_pattern(bool of_case) {
  ConditionWord made;
  int depth = 0;
  while (at_ < script_.size()) {
    const char letter = here();
    if (letter == '"' || letter == '\'') {
      Fields fields;
      take_quoted(letter, fields);
      const std::string text = joined(fields.finish()).letters;
      made.text += text;
      made.pattern += quoted_pattern(text);
    } else if (letter == '$') {
      const Expansion found = dollar(false);
      std::string text;
      for (const Text& word : found.words) text += (text.empty() ? "" : " ") + word.letters;
      made.text += text;
      made.pattern += text;
    } else if (letter == '\\' && at_ + 1 < script_.size()) {
      if (next() != '\n') made.text += next();
      if (next() != '\n') made.pattern += std::string("\\") + next();
      at_ += 2;
    } else {
      const bool ends = is_space(letter) || letter == ')' || letter == ';' ||
                        (letter == '|' && of_case) || (letter == '&' && next() == '&') ||
                        (letter == '|' && next() == '|');
      if (ends && (depth == 0 || letter == '\n')) return made;
      if (letter == '(') ++depth;
      if (letter == ')') --depth;
      made.text += letter;
      made.pattern += letter;
      ++at_;
    }
  }
  return made;
}

std::size_t Reader::arithmetic_end() const {
  if (!begins_command() && program() != "for") return 0;
  const std::size_t end = closing(at_ + 2, '(', ')');
  if (end == std::string::npos || end + 1 >= script_.size() || script_.letters[end + 1] != ')') {
    return 0;
  }
  return end;
}

void Reader::take_arithmetic(std::size_t end) {
  if (!is_begun_) begun_at_ = at_;
  const std::string text = script_.letters.substr(at_ + 2, end - at_ - 2);
  at_ = end + 2;
  if (program() != "for") {
    words().push_back({"((", line()});
    pending_ = runs_not() ? Truth::maybe : changed(text);
    return;
  }
  begin_counting(text);
}

Truth Reader::changed(const std::string& text) {
  Truth status = Truth::maybe;
  for (const std::string& part : parts_of(text)) {
    const auto change = change_in(part);
    const std::string expression = change ? change->value : part;
    const auto value = number(Text(expression, line()));
    status = value ? truth_of(*value != 0) : Truth::maybe;
    if (!value) forget_changed(expression);
    if (!change) continue;
    if (value && !accumulates(change->name, "((" + expression)) {
      Value made{{Text(fmt::format("{}", *value), line())}};
      made.doubts = whole_.used;
      replace(change->name, std::move(made));
    } else {
      forget(change->name);
    }
    const bool is_step = part.find('=') == std::string::npos;  // its value is the one before
    if (is_step) status = Truth::maybe;
  }
  return status;
}

void Reader::forget_changed(const std::string& expression) {
  for (std::size_t at = 0; at < expression.size();) {
    const std::size_t begin = at;
    while (at < expression.size() && is_name(expression[at])) ++at;
    const std::string name = expression.substr(begin, at - begin);
    const std::string before = expression.substr(begin < 2 ? 0 : begin - 2, begin < 2 ? 0 : 2);
    const bool is_changed = begins_change(expression, at) || before == "++" || before == "--";
    if (!name.empty() && is_changed) forget(name);
    if (name.empty()) ++at;
  }
}

std::optional<std::int64_t> Reader::number(const Text& expression) {
  const std::string text = inner_text(expression).letters;
  if (!is_known(text)) return std::nullopt;
  return arithmetic_of(text, [this](const std::string& name) -> std::optional<std::string> {
    const auto known = value_of(name);
    if (!known) return std::nullopt;
    const std::string value = known->text();
    return value.empty() ? "0" : value;
  });
}

}  // namespace moesim::shell
