#include <algorithm>
#include <string_view>
#include <utility>

#include "sim/shell/reader.hpp"

namespace moesim::shell {

bool Reader::take_assignment() {
  std::size_t at = at_;
  while (at < script_.size() && is_name(script_.letters[at])) ++at;
  const std::string name = script_.letters.substr(at_, at - at_);
  if (name.empty()) return false;
  std::string key;
  if (at < script_.size() && script_.letters[at] == '[') {
    const std::size_t end = closing(at + 1, '[', ']');
    if (end == std::string::npos) return false;
    key = script_.letters.substr(at + 1, end - at - 1);
    at = end + 1;
  }
  const bool adds = script_.letters.compare(at, 2, "+=") == 0;
  if (!adds && (at >= script_.size() || script_.letters[at] != '=')) return false;
  if (!is_begun_) begun_at_ = at_;
  is_begun_ = true;
  at_ = at + (adds ? 2 : 1);
  const std::size_t begin = at_;
  Doubts others = std::exchange(whole_.used, {});
  Value value;
  if (here() == '(' && key.empty()) {
    value = array_words(true);
  } else {
    value.words = {joined(take_fields(false))};
  }
  value.doubts = std::exchange(whole_.used, std::move(others));
  const std::string written = script_.letters.substr(begin, at_ - begin);
  const std::string by = program();
  note_export(name);
  if (runs_not()) {
    if (before_.empty() && (by.empty() || is_list_of_names_)) skip_assignment(name);
  } else if (by == "env") {
    for_command_.emplace_back(name, std::move(value));
  } else {
    note_local(name);
    if (by.empty() && !ends_here()) before_.emplace_back(name, found(name));
    const bool is_text = !value.is_array && !value.holds_arguments();
    const bool is_longer = accumulates(name, adds ? "$" + name : written);
    if (is_longer && !is_text) add_turns(name, written, value);
    if (is_text && is_longer) {
      forget(name);
    } else if (!key.empty()) {
      set_element(name, inner_text(Text(key, line())), std::move(value), adds);
    } else {
      set(name, std::move(value), adds);
    }
  }
  return true;
}

void Reader::note_local(const std::string& name) {
  const std::string by = program();
  const bool is_local = is_function_ && is_list_of_names_ && by != "export" && by != "readonly";
  if (is_local) locals_.emplace_back(name, found(name));
}

bool Reader::take_expanded(const Text& word, const Doubts& doubts, const std::string& written) {
  const auto equals = word.letters.find('=');
  const std::string before = word.letters.substr(0, equals);
  if (!is_known(before) && before.front() != '-') {
    const std::vector<Word>& all = words();
    const bool sets_none = std::any_of(all.begin(), all.end(), [](const Word& each) {
      return each.text == "-p" || each.text == "-f" || each.text == "-F";
    });
    const bool may_set = program() != "env" && !sets_none;
    if (may_set && !runs_not()) whole_.files.note_unknown_names(word.letters, line());
    return false;
  }
  if (equals == std::string::npos) return false;
  const bool adds = !before.empty() && before.back() == '+';
  const std::string name = adds ? before.substr(0, equals - 1) : before;
  const bool is_variable = !name.empty() && std::all_of(name.begin(), name.end(), is_name) &&
                           (name.front() < '0' || name.front() > '9');
  if (!is_variable) return false;
  note_export(name);
  Value value{{word.part(equals + 1, word.size())}};
  value.doubts = doubts;
  if (runs_not()) {
    skip_assignment(name);
  } else if (program() == "env") {
    for_command_.emplace_back(name, std::move(value));
  } else {
    note_local(name);
    const std::string made_of = written.substr(std::min(written.find('='), written.size()));
    if (!value.holds_arguments() && accumulates(name, adds ? "$" + name : made_of)) {
      forget(name);
    } else {
      set(name, std::move(value), adds);
    }
  }
  return true;
}

bool Reader::ends_here() const {
  const auto next = script_.letters.find_first_not_of(" \t", at_);
  return next == std::string::npos ||
         std::string_view("\n;&|)#").find(script_.letters[next]) != std::string_view::npos;
}

std::optional<Value> Reader::found(const std::string& name) const {
  const auto known = variables_->find(name);
  return known == variables_->end() ? std::nullopt : std::optional(known->second);
}

void Reader::hide_assignments() {
  for (const auto& each : before_) {
    if (auto value = found(each.first)) for_command_.emplace_back(each.first, std::move(*value));
  }
  restore(std::exchange(before_, {}));
}

Reader::OldValues Reader::assign(const NewValues& values) {
  OldValues old;
  for (const auto& [name, value] : values) {
    old.emplace_back(name, found(name));
    variables()[name] = value;
  }
  return old;
}

void Reader::restore(const OldValues& values) {
  for (auto each = values.rbegin(); each != values.rend(); ++each) {
    if (each->second) {
      variables()[each->first] = *each->second;
    } else {
      variables().erase(each->first);
    }
  }
}

void Reader::set_local(const std::string& name) {
  if (name.rfind('-', 0) == 0) return;
  locals_.emplace_back(name, found(name));
  Value none{{Text()}};
  none.is_unset = true;
  variables()[name] = std::move(none);
}

bool Reader::accumulates(const std::string& name, const std::string& text) const {
  if (!repeats_ && !frames_.back().repeats) return false;
  const bool is_number = text.find("((") != std::string::npos;  // which names variables without "$"
  for (auto at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    const auto end = at + name.size();
    const char before = at == 0 ? ' ' : text[at - 1];
    const bool begins = is_number ? !is_name(before) : before == '$' || before == '{';
    if (begins && (end == text.size() || !is_name(text[end]))) return true;
  }
  return false;
}

void Reader::add_turns(const std::string& name, const std::string& written, Value& value) const {
  if (!is_known(value.text())) return;  // it is told of
  bool depends = false;
  for (auto at = written.find('$'); at != std::string::npos; at = written.find('$', at + 1)) {
    const std::size_t begin = at + (written.compare(at, 2, "${") == 0 ? 2 : 1);
    depends = depends || written.compare(begin, name.size(), name) != 0;
  }
  if (!depends) return;
  const Text more("${" + name + "[@]}", line());
  if (value.is_array) {
    value.words.push_back(more);
  } else {
    value.words.front().add(' ', line());
    value.words.front().add(more);
  }
}

Value Reader::array_words(bool has_bracket) {
  Value value{{}, true};
  in_array_ = true;
  if (has_bracket) ++at_;
  while (at_ < script_.size() && !(has_bracket && here() == ')')) {
    const std::size_t begin = at_;
    if (here() == '\\' && next() == '\n') {
      at_ += 2;
    } else if (here() == '#' && has_bracket) {
      while (at_ < script_.size() && here() != '\n') ++at_;
    } else {
      for (Field& field : take_fields(true)) value.words.push_back(std::move(field.text));
      if (at_ == begin) ++at_;  // a space
    }
  }
  in_array_ = false;
  if (at_ < script_.size()) ++at_;
  return value;
}

void Reader::set(const std::string& given, Value value, bool adds) {
  if (runs_not()) return;
  std::string name = given;
  const std::string by = program();
  if (by == "declare" || by == "local" || by == "typeset") {
    const std::vector<Word>& all = words();
    value.names_another =
        std::any_of(all.begin(), all.end(), [](const Word& word) { return word.text == "-n"; });
  } else if (const auto old = variables_->find(name);
             old != variables_->end() && old->second.names_another) {
    name = old->second.text();
  }
  if (value.holds_arguments()) add_list(name, value);
  if (runs() == Truth::maybe && name != all_words) {
    set_perhaps(name, std::move(value), adds);
    return;
  }
  Value& old = variables()[name];
  add_doubts(value.doubts, frames_.back().doubts_now());
  if (adds && old.is_lost) {
    const bool is_list = value.is_array || value.holds_arguments();
    old = {{Text("${" + name + (is_list ? "[@]}" : "}"), line())}};
  }
  if (!adds || old.words.empty() || old.is_unset) {
    old = std::move(value);
  } else {
    append(old, value);
  }
}

void Reader::set_perhaps(const std::string& name, Value value, bool adds) {
  constexpr std::size_t most_values = 6;
  Value& old = variables()[name];
  const bool has_old = !old.is_unset && !old.words.empty();
  const bool is_list = has_old && old.holds_arguments() && !value.begins_with(old);
  const Cause& cause = frames_.back().cause_now();
  Doubt doubt{name, {}, "", has_old && (adds || is_list), cause.text, cause.line};
  if (has_old && old.own && old.own->adds == doubt.adds) {
    doubt.values = old.own->values;
  } else if (has_old && !doubt.adds) {
    const Text text = old.joined();
    doubt.values.push_back({text.letters, text.line_at(0)});
  }
  const Text text = value.joined();
  const bool is_new = std::none_of(doubt.values.begin(), doubt.values.end(),
                                   [&](const auto& each) { return each.text == text.letters; });
  const int place = text.size() == 0 ? line() : text.line_at(0);
  if (is_new && doubt.values.size() < most_values) doubt.values.push_back({text.letters, place});
  const bool is_same = has_old && !doubt.adds && doubt.values.size() == 1;
  Doubts doubts = std::move(old.doubts);
  doubts.erase(std::remove(doubts.begin(), doubts.end(), is_same ? nullptr : old.own),
               doubts.end());
  add_doubts(doubts, value.doubts);
  std::shared_ptr<const Doubt> own = std::move(old.own);
  if (doubt.adds) {
    if (is_list && !adds && !old.is_array) old.words.front().add(' ', line());
    append(old, value);
  } else if (!has_old || is_known(text.letters) || !is_known(old.text()) ||
             value.holds_arguments()) {
    old = std::move(value);
  }  // else one that is known stays before one that is not
  doubt.taken = doubt.adds ? text.letters : old.text();
  if (!is_same) own = std::make_shared<const Doubt>(std::move(doubt));
  old.doubts = std::move(doubts);
  if (own) add_doubts(old.doubts, {own});
  old.own = std::move(own);
}

void Reader::replace(const std::string& name, Value value) {
  if (runs() == Truth::yes) {
    add_doubts(value.doubts, frames_.back().doubts_now());
    variables()[name] = std::move(value);
  } else if (runs() == Truth::maybe) {
    set_perhaps(name, std::move(value), false);
  }
}

void Reader::skip_assignment(const std::string& name) {
  if (!found(name)) {
    Value none{{Text()}};
    none.is_unset = true;
    variables()[name] = std::move(none);
  }
  const Doubts doubts = frames_.back().doubts_now();
  if (!doubts.empty()) add_doubts(variables()[name].doubts, doubts);
}

void Reader::forget(const std::string& name) {
  const bool is_variable = !name.empty() && std::all_of(name.begin(), name.end(), is_name) &&
                           (name.front() < '0' || name.front() > '9');
  if (runs_not() || !is_variable) return;
  Value lost;
  lost.is_lost = true;
  variables()[name] = std::move(lost);
}

bool Reader::is_lost(const std::string& name) const {
  const auto known = variables_->find(name);
  return known != variables_->end() && known->second.is_lost;
}

void Reader::set_element(const std::string& name, const Text& key, Value value, bool adds) {
  if (is_lost(name)) return;
  Value array = found(name).value_or(Value{{}, true});
  if (array.is_unset) array = {{}, true};
  add_doubts(array.doubts, value.doubts);
  array.is_array = true;
  Text& word = value.words.front();
  const std::size_t place = place_of(array, key);
  if (place < array.words.size()) {
    const bool has_key = array.words[place].letters.rfind('[', 0) == 0;
    Text made = has_key ? key_of(array.words[place]) : Text();
    if (adds) made.add(without_key(array.words[place]));
    made.add(word);
    array.words[place] = std::move(made);
  } else {
    const bool is_plain = number(key) == static_cast<std::int64_t>(array.words.size());
    Text made = is_plain ? Text() : Text("[" + key.letters + "]=", line());
    made.add(word);
    array.words.push_back(std::move(made));
  }
  if (Value added{{word}, true}; added.holds_arguments()) add_list(name, added);
  replace(name, std::move(array));
}

std::size_t Reader::place_of(const Value& array, const Text& key) {
  const std::string prefix = "[" + key.letters + "]=";
  for (std::size_t place = array.words.size(); place-- > 0;) {
    if (array.words[place].letters.rfind(prefix, 0) == 0) return place;
  }
  const auto size = static_cast<std::int64_t>(array.words.size());
  const auto at = number(key);
  if (!at || *at >= size || *at < -size) return array.words.size();
  const auto place = static_cast<std::size_t>(*at < 0 ? size + *at : *at);
  // A word with another key.
  const bool has_key = array.words[place].letters.rfind('[', 0) == 0 &&
                       array.words[place].letters.find("]=") != std::string::npos;
  return has_key ? array.words.size() : place;
}

void Reader::unset(const std::string& given) {
  if (given.rfind('-', 0) == 0) return;
  const auto bracket = given.find('[');
  Value value{{Text()}};
  value.is_unset = true;
  const std::string name = given.substr(0, bracket);
  if (bracket != std::string::npos && given.back() == ']') {
    const std::optional<Value> array = found(name);
    if (!array || array->is_lost) return;
    value = *array;
    const auto key =
        inner_text(Text(given.substr(bracket + 1, given.size() - bracket - 2), line()));
    const std::size_t place = place_of(value, key);
    if (place == value.words.size()) return;
    value.words.erase(value.words.begin() + static_cast<std::ptrdiff_t>(place));
  }
  replace(name, std::move(value));
}

void Reader::add_list(const std::string& name, const Value& value) {
  if (runs_not()) return;
  Command list{Command::Kind::list, {}, name, outer_};
  for (const Text& each : value.words) {
    const bool divides = !value.is_array;
    for (const Text& word : divides ? words_in(each, true) : std::vector<Text>{without_key(each)}) {
      list.words.push_back({word.letters, word.line_at(0)});
    }
  }
  whole_.commands.push_back(std::move(list));
}

bool Reader::take_function() {
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
  at_ = end + 1;
  if (runs_not()) return true;
  Function& function = whole_.functions[name];
  if (function.bodies.empty()) whole_.function_names.push_back(name);
  if (runs() == Truth::yes) function.bodies.clear();
  function.bodies.push_back(script_.part(at + 1, end));
  function.is_called = false;
  return true;
}

}  // namespace moesim::shell
