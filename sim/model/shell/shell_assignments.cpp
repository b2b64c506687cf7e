#include <algorithm>
#include <utility>

#include "sim/model/shell/shell_reader.hpp"

namespace moesim::model {

bool ShellReader::take_assignment() {
  std::size_t at = at_;
  while (at < script_.size() && is_name(script_.letters[at])) ++at;
  const std::string name = script_.letters.substr(at_, at - at_);
  if (name.empty()) return false;
  std::string key;
  if (at < script_.size() && script_.letters[at] == '[') {
    const std::size_t end = closing(at + 1, '[', ']');
    if (end == std::string::npos) return false;
    key = script_.letters.substr(at, end + 1 - at);
    at = end + 1;
  }
  const bool adds = script_.letters.compare(at, 2, "+=") == 0;
  if (!adds && (at >= script_.size() || script_.letters[at] != '=')) return false;
  at_ = at + (adds ? 2 : 1);
  is_begun_ = true;
  ShellValue value;
  if (here() == '(' && key.empty()) {
    value = array_words(true);
  } else {
    value.words = {joined(take_fields(false))};
  }
  if (!key.empty()) {
    ShellText element(inner_text(ShellText(key, line())).letters + "=", line());
    element.add(value.words.front());
    value = {{element}, true};
  }
  set(name, std::move(value), adds || !key.empty());
  return true;
}

ShellValue ShellReader::array_words(bool has_bracket) {
  ShellValue value{{}, true};
  in_array_ = true;
  if (has_bracket) ++at_;
  while (at_ < script_.size() && !(has_bracket && here() == ')')) {
    const std::size_t begin = at_;
    if (here() == '\\' && next() == '\n') {
      at_ += 2;
    } else if (here() == '#' && has_bracket) {
      while (at_ < script_.size() && here() != '\n') ++at_;
    } else {
      for (ShellField& field : take_fields(true)) value.words.push_back(std::move(field.text));
      if (at_ == begin) ++at_;  // a space
    }
  }
  in_array_ = false;
  if (at_ < script_.size()) ++at_;
  return value;
}

void ShellReader::set(const std::string& name, ShellValue value, bool adds) {
  if (value.holds_arguments()) add_list(name, value);
  if (is_list_of_names_ && !words().empty()) {
    const std::vector<ShellWord>& all = words();
    value.names_another = std::any_of(all.begin(), all.end(),
                                      [](const ShellWord& word) { return word.text == "-n"; });
  }
  ShellValue& old = variables()[name];
  const bool is_branch = branches_ > 0 || is_conditional_;
  if (!adds && is_branch && old.holds_arguments() && !value.begins_with(old)) {
    if (!old.is_array) old.words.front().add(' ', line());
    adds = true;
  }
  if (!adds || old.words.empty()) {
    old = std::move(value);
  } else if (old.is_array || value.is_array) {
    if (!old.is_array) old.words = words_in(old.words.front(), true);
    old.is_array = true;
    old.words.insert(old.words.end(), value.words.begin(), value.words.end());
  } else {
    old.words.front().add(value.words.front());
  }
}

void ShellReader::add_list(const std::string& name, const ShellValue& value) {
  ShellCommand list{ShellCommand::Kind::list, {}, name, outer_};
  for (const ShellText& each : value.words) {
    const bool divides = !value.is_array;
    for (const ShellText& word :
         divides ? words_in(each, true) : std::vector<ShellText>{without_key(each)}) {
      list.words.push_back({word.letters, word.line_at(0)});
    }
  }
  whole_.commands.push_back(std::move(list));
}

bool ShellReader::take_function() {
  const std::string& text = script_.letters;
  std::size_t at = at_;
  const auto skip = [&](const char* letters) {
    at = std::min(text.find_first_not_of(letters, at), text.size());
  };
  const bool has_word = text.compare(at, 9, "function ") == 0;
  if (has_word) at += 9;
  skip(" ");
  const std::size_t begin = at;
  while (at < text.size() && (is_name(text[at]) || text[at] == '-' || text[at] == ':')) ++at;
  const std::string name = text.substr(begin, at - begin);
  skip(" \t");
  const bool has_brackets = text.compare(at, 2, "()") == 0;
  if (has_brackets) at += 2;
  if (is_text_ || name.empty() || (!has_word && !has_brackets)) return false;
  skip(" \t\n");
  if (at == text.size() || text[at] != '{') return false;
  const std::size_t end = body_end(text, at_, at + 1);
  if (end == std::string::npos) return false;
  ShellFunction& function = whole_.functions[name];
  if (function.bodies.empty()) whole_.function_names.push_back(name);
  if (branches_ == 0) function.bodies.clear();
  function.bodies.push_back(script_.part(at + 1, end));
  function.is_called = false;
  at_ = end + 1;
  return true;
}

}  // namespace moesim::model
