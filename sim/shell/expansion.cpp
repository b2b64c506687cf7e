#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include "sim/base/text.hpp"
#include "sim/shell/reader.hpp"

namespace moesim::shell {
namespace {

constexpr std::size_t none = std::string::npos;

}  // namespace

std::vector<Field> Reader::take_fields(bool divides) {
  Fields fields;
  int depth = 0;  // of brackets in an array
  while (at_ < script_.size()) {
    const char letter = here();
    if (letter == '"' || letter == '\'') {
      take_quoted(letter, fields);
    } else if (letter == '$') {
      add_expansion(dollar(false), divides, fields);
    } else if (const std::size_t end = letter == '`' ? backtick_end(script_.letters, at_) : none;
               end != none) {
      add_expansion(backticks(end), divides, fields);
    } else if (letter == '\\' && at_ + 1 < script_.size()) {
      if (next() == '\n') break;
      fields.add(next(), line());
      at_ += 2;
    } else if (ends_word(letter) && (letter != ')' || depth == 0)) {
      break;
    } else {
      if (letter == '(') ++depth;
      if (letter == ')') --depth;
      fields.add(letter, line());
      ++at_;
    }
  }
  return fields.finish();
}

void Reader::take_quoted(char quote, Fields& fields) {
  const int begin = line();
  bool has_words = true;  // "${A[@]}" may have none
  fields.begin_quote();
  for (++at_; at_ < script_.size() && here() != quote;) {
    if ((quote == '"' || fills_quotes_) && here() == '$') {
      const Expansion found = dollar(true);
      if (found.is_array) {
        fields.add_words(found.words);
        has_words = false;
      } else {
        fields.add(found.words.front());
      }
      continue;
    }
    const bool is_backtick = quote == '"' && here() == '`';
    if (const std::size_t end = is_backtick ? backtick_end(script_.letters, at_) : none;
        end != none) {
      fields.add(backticks(end).words.front());
      continue;
    }
    const bool is_escape =
        here() == '\\' && std::string_view("$`\"\\\n").find(next()) != std::string_view::npos;
    if (quote == '"' && is_escape && at_ + 1 < script_.size()) {
      ++at_;
      if (here() == '\n') {
        fields.add(' ', line());
        ++at_;
        continue;
      }
    }
    fields.add(here(), line());
    ++at_;
  }
  if (at_ == script_.size()) {
    throw OpenQuote(fmt::format("{}: the quote {} has no end", whole_.files.address(begin), quote));
  }
  ++at_;
  if (has_words) fields.open();
  fields.end_quote();
}

void Reader::add_expansion(const Expansion& found, bool divides, Fields& fields) {
  for (std::size_t word = 0; word < found.words.size(); ++word) {
    if (word > 0 && divides) fields.end();
    if (word > 0 && !divides) fields.add(' ', found.words[word].line_at(0));
    if (divides && !found.is_whole) {
      fields.add_divided(found.words[word]);
    } else {
      fields.add(found.words[word]);
    }
  }
}

Reader::Expansion Reader::dollar(bool is_quoted) {
  const std::size_t begin = at_++;
  if (script_.letters.compare(at_, 2, "((") == 0) return arithmetic(begin);
  if (here() == '(') return output_of_command(begin);
  if (here() == '#' || (here() == '{' && next() == '#')) return length(begin);
  const bool is_braced = here() == '{';
  if (is_braced) ++at_;
  const bool names_another = is_braced && here() == '!';
  if (names_another) ++at_;
  const std::size_t name_begin = at_;
  while (is_name(here())) ++at_;
  if (at_ == name_begin && (here() == '@' || here() == '*')) ++at_;
  std::string name = script_.letters.substr(name_begin, at_ - name_begin);
  bool joins = name == "*";
  if (joins) name = all_words;
  Text operation;
  if (is_braced) {
    const auto end = closing(at_, '{', '}');
    if (end == std::string::npos) return unknown(begin);
    operation = script_.part(at_, end);
    at_ = end + 1;
  }
  joins = joins || operation.letters.rfind("[*]", 0) == 0;
  std::optional<Value> value =
      names_another ? named_by(name, operation.letters) : operated(name, operation, is_quoted);
  if (!value) return unknown(begin);
  if (value->is_array && !(joins && is_quoted))
    return {std::move(value->words), value->is_divided, true};
  return {{value->joined()}};
}

Reader::Expansion Reader::arithmetic(std::size_t begin) {
  const auto end = closing(at_ + 2, '(', ')');
  if (end == std::string::npos) return unknown(begin);
  const Text expression = script_.part(at_ + 2, end);
  at_ = std::min(end + 2, script_.size());
  const auto value = number(expression);
  if (!value) forget_changed(expression.letters);
  return value ? Expansion{{Text(fmt::format("{}", *value), script_.line_at(begin))}}
               : unknown(begin);
}

Reader::Expansion Reader::length(std::size_t begin) {
  const bool is_braced = here() == '{';
  at_ += is_braced ? 2 : 1;
  std::string name;
  while (is_braced && is_name(here())) name += script_.letters[at_++];
  const bool is_whole =
      script_.letters.compare(at_, 3, "[@]") == 0 || script_.letters.compare(at_, 3, "[*]") == 0;
  if (is_braced && is_whole) at_ += 3;
  if (is_braced) {
    const auto end = closing(at_, '{', '}');
    if (end == std::string::npos) return unknown(begin);
    const bool is_simple = end == at_;
    at_ = end + 1;
    if (!is_simple) return unknown(begin);
  }
  const std::optional<Value> value = value_of(name.empty() ? all_words : name);
  if (!value) return unknown(begin);
  const bool counts = name.empty() || is_whole;
  const std::size_t words = value->is_unset ? 0 : value->words.size();
  const std::string first = value->words.empty() ? "" : without_key(value->words.front()).letters;
  if (!counts && !is_known(first)) return unknown(begin);
  return {{Text(fmt::format("{}", counts ? words : first.size()), script_.line_at(begin))}};
}

Reader::Expansion Reader::output_of_command(std::size_t begin) {
  at_ = behind_bracket(script_.letters, at_);
  const bool is_closed = script_.letters[at_ - 1] == ')' && at_ > begin + 2;
  if (!is_closed && nesting_ == 0) {
    throw OpenQuote(
        fmt::format("{}: the $( has no end", whole_.files.address(script_.line_at(begin))));
  }
  return output_of(script_.part(begin + 2, is_closed ? at_ - 1 : at_), begin);
}

Reader::Expansion Reader::backticks(std::size_t end) {
  const std::size_t begin = std::exchange(at_, end + 1);
  return output_of(without_backslashes(script_.part(begin + 1, end)), begin);
}

Text Reader::filled(const Text& text) {
  Reader inner(whole_, text, variables_);
  inner.nesting_ = nesting_ + 1;
  Fields fields;
  while (inner.at_ < text.size()) {
    if (inner.here() == '$') {
      add_expansion(inner.dollar(true), false, fields);
    } else {
      fields.add(inner.here(), inner.line());
      ++inner.at_;
    }
  }
  return joined(fields.finish());
}

std::optional<Value> Reader::named_by(const std::string& name, const std::string& operation) {
  const std::optional<Value> named = value_of(name);
  if (named && (operation == "[@]" || operation == "[*]")) return keys_of(*named);
  if (!named || !operation.empty()) return std::nullopt;
  const std::string text = named->text();
  return value_of(text.substr(0, text.find('[')));
}

std::optional<Value> Reader::operated(const std::string& name, Text operation, bool is_quoted) {
  std::optional<Value> value = value_of(name);
  if (!value && is_lost(name)) return std::nullopt;
  if (name == all_words || operation.letters.rfind('[', 0) == 0) {
    if (name != all_words) {
      const auto end = operation.letters.find(']');
      if (end == std::string::npos) return std::nullopt;
      const Text key = operation.part(1, end);
      if (value && !knows_element(*value, key)) return std::nullopt;
      value = element_of(value, key);
      operation = operation.part(end + 1, operation.size());
    } else if (!value) {
      value = Value{{}, true};
    }
  }
  const std::string& signs = operation.letters;
  if (signs.empty()) return value;
  if (signs.front() == '/' && value) return replaced(*value, operation);
  const std::size_t sign = signs.front() == ':' ? 1 : 0;
  const bool is_empty = value && (value->is_array ? value->words.empty() : value->text().empty());
  const bool is_set = value && !value->is_unset && !(is_empty && (sign == 1 || value->is_array));
  const Text text = operation.part(std::min(sign + 1, signs.size()), signs.size());
  switch (sign < signs.size() ? signs[sign] : '\0') {
    case '?':
      return value;
    case '-':
      if (!value) note_fallback(name, text);
      return is_set ? value : inner_value(text, is_quoted);
    case '+':
      if (!is_set) return value && value->is_array ? Value{{}, true} : Value{{Text()}};
      return inner_value(text, is_quoted);
    case '=':
      if (!value) note_fallback(name, text);
      if (!is_set && !runs_not()) variables()[name] = {{inner_text(text)}};
      return is_set ? value : value_of(name);
    default:
      if (sign == 0 || !value) return std::nullopt;
      if (name == all_words) value->words.insert(value->words.begin(), Text());  // $0
      return part_of(*value, signs.substr(1), [&](const std::string& expression) {
        return number(Text(expression, line()));
      });
  }
}

void Reader::note_fallback(const std::string& name, const Text& text) {
  const bool is_word = parse_number<std::size_t>(name).has_value();  // of a function
  if (is_word || runs_not()) return;
  whole_.files.add_fallback(name, inner_text(text).letters);
}

std::optional<Value> Reader::element_of(const std::optional<Value>& array, const Text& key) {
  if (!array) return std::nullopt;
  if (key.letters == "@" || key.letters == "*") {
    Value all{{}, true};
    if (array->is_unset) return all;
    for (const Text& word : array->words) all.words.push_back(without_key(word));
    return all;
  }
  if (array->is_unset) return Value{{Text()}};
  const std::string name = inner_text(key).letters;
  const std::string prefix = "[" + name + "]=";
  for (auto word = array->words.rbegin(); word != array->words.rend(); ++word) {
    if (word->letters.rfind(prefix, 0) == 0) return Value{{without_key(*word)}};
  }
  const auto size = static_cast<std::int64_t>(array->words.size());
  const auto place = number(Text(name, line()));
  if (!place || *place >= size || *place < -size) return std::nullopt;
  return Value{{array->words[static_cast<std::size_t>(*place < 0 ? size + *place : *place)]}};
}

bool Reader::knows_element(const Value& array, const Text& key) {
  if (array.is_unset || key.letters == "@" || key.letters == "*") return true;
  const bool has_keys = std::any_of(array.words.begin(), array.words.end(),
                                    [](const auto& word) { return key_of(word).size() > 0; });
  const std::string name = inner_text(key).letters;
  return is_known(name) && (has_keys || number(Text(name, line())));
}

std::optional<Value> Reader::replaced(const Value& value, const Text& operation) {
  const bool all = operation.letters.compare(0, 2, "//") == 0;
  const std::size_t begin = all ? 2 : 1;
  const std::size_t slash = operation.letters.find('/', begin + 1);
  const std::size_t end = std::min(slash, operation.size());
  const std::string old = inner_text(operation.part(std::min(begin, end), end)).letters;
  const Text made_of =
      slash == std::string::npos ? Text() : inner_text(operation.part(slash + 1, operation.size()));
  const bool is_plain = old.find_first_of("*?[]\\#%") == std::string::npos;
  if (old.empty() || !is_plain || !is_known(old) || !is_known(value.text())) return std::nullopt;
  Value made = value;
  for (Text& word : made.words) {
    Text whole;
    std::size_t from = 0;
    for (auto at = word.letters.find(old); at != std::string::npos && whole.size() < most;
         at = all ? word.letters.find(old, from) : std::string::npos) {
      whole.add(word.part(from, at));
      whole.add(made_of);
      from = at + old.size();
    }
    whole.add(word.part(from, word.size()));
    word = std::move(whole);
  }
  return made;
}

Text Reader::inner_text(const Text& text) {
  if (nesting_ >= deepest) return text;
  Reader inner(whole_, text, variables_);
  inner.nesting_ = nesting_ + 1;
  Text made;
  while (inner.at_ < text.size()) {
    if (is_space(inner.here())) {
      made.add(inner.here(), inner.line());
      ++inner.at_;
      continue;
    }
    const std::size_t begin = inner.at_;
    made.add(joined(inner.take_fields(false)));
    if (inner.at_ > begin) continue;
    made.add(inner.here(), inner.line());
    ++inner.at_;
  }
  return made;
}

Value Reader::inner_value(const Text& text, bool is_quoted) {
  if (is_quoted || nesting_ >= deepest) return {{inner_text(text)}};
  Reader inner(whole_, text, variables_);
  inner.nesting_ = nesting_ + 1;
  Value value = inner.array_words(false);
  value.is_divided = true;
  return value;
}

std::optional<Value> Reader::value_of(const std::string& name) {
  auto known = variables_->find(name);
  constexpr int longest = 10;  // names of names
  for (int steps = 0; known != variables_->end() && known->second.names_another; ++steps) {
    if (steps == longest) return std::nullopt;
    known = variables_->find(known->second.text());
  }
  if (known == variables_->end()) return word_of_function(name);
  if (known->second.is_lost) return std::nullopt;
  add_doubts(whole_.used, known->second.doubts);
  // Each line A=$A$A makes A twice as long.
  for (const Text& word : known->second.words) whole_.put_in += word.size();
  if (known->second.is_array) whole_.put_in += known->second.words.size();
  if (whole_.put_in > most) {
    throw UsageError(fmt::format("{}: variables have more than {} MiB where they are used",
                                 whole_.files.address(line()), most >> 20));
  }
  return known->second;
}

std::optional<Value> Reader::word_of_function(const std::string& name) const {
  const auto number = parse_number<std::size_t>(name);
  const auto all = variables_->find(all_words);
  if (!number || *number == 0 || all == variables_->end()) return std::nullopt;
  if (*number > all->second.words.size()) return Value{{Text()}};
  return Value{{all->second.words[*number - 1]}};
}

}  // namespace moesim::shell
