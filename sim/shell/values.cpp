#include "sim/shell/values.hpp"

#include <algorithm>
#include <cstddef>

namespace moesim::shell {

void add_doubts(Doubts& to, const Doubts& more) {
  constexpr std::size_t most = 32;
  for (const auto& doubt : more) {
    const bool is_new = std::find(to.begin(), to.end(), doubt) == to.end();
    if (is_new && to.size() < most) to.push_back(doubt);
  }
}

void append(Value& to, const Value& more) {
  add_doubts(to.doubts, more.doubts);
  if (to.is_array || more.is_array) {
    if (!to.is_array) to.words = words_in(to.words.front(), true);
    to.is_array = true;
    to.words.insert(to.words.end(), more.words.begin(), more.words.end());
  } else {
    to.words.front().add(more.words.front());
  }
}

Text Value::joined() const {
  Text all;
  for (std::size_t word = 0; word < words.size(); ++word) {
    if (word > 0) all.add(' ', all.line_at(all.size()));
    all.add(words[word]);
  }
  return all;
}

bool Value::holds_arguments() const {
  return std::any_of(words.begin(), words.end(),
                     [](const Text& word) { return is_list(word.letters); });
}

bool Value::begins_with(const Value& other) const {
  if (!is_array && !other.is_array) return text().rfind(other.text(), 0) == 0;
  return words.size() >= other.words.size() &&
         std::equal(other.words.begin(), other.words.end(), words.begin(),
                    [](const auto& one, const auto& two) { return one.letters == two.letters; });
}

std::optional<Value> part_of(const Value& whole, const std::string& range, const Number& number) {
  const Text text = whole.joined();
  const auto size = static_cast<std::int64_t>(whole.is_array ? whole.words.size() : text.size());
  const auto colon = range.find(':');
  const auto offset = number(range.substr(0, colon));
  if (!offset) return std::nullopt;
  const std::int64_t begin = *offset < 0 ? size + *offset : *offset;
  if (begin < 0 || begin > size) return Value{{Text()}};
  std::int64_t end = size;
  if (colon != std::string::npos) {
    const auto length = number(range.substr(colon + 1));
    if (!length) return std::nullopt;
    end = *length < 0 ? size + *length : std::min(size, begin + std::min(size, *length));
  }
  if (end < begin) return std::nullopt;
  if (!whole.is_array) {
    return Value{{text.part(static_cast<std::size_t>(begin), static_cast<std::size_t>(end))}};
  }
  return Value{{whole.words.begin() + begin, whole.words.begin() + end}, true};
}

Text without_key(const Text& element) {
  const auto end = element.letters.find("]=");
  if (element.letters.rfind('[', 0) != 0 || end == std::string::npos) return element;
  return element.part(end + 2, element.size());
}

Text key_of(const Text& element) {
  return element.part(0, element.size() - without_key(element).size());
}

Value keys_of(const Value& array) {
  Value keys{{}, true};
  if (array.is_unset) return keys;
  for (std::size_t word = 0; word < array.words.size(); ++word) {
    const Text key = key_of(array.words[word]);
    const int line = array.words[word].line_at(0);
    const bool has_key = key.size() > 0;
    keys.words.push_back(has_key ? key.part(1, key.size() - 2) : Text(std::to_string(word), line));
  }
  return keys;
}

void Fields::add_words(const std::vector<Text>& words) {
  for (std::size_t word = 0; word < words.size(); ++word) {
    if (word > 0) end();
    add(words[word]);
  }
}

void Fields::add_divided(const Text& text) {
  if (text.size() == 0) return;
  if (is_space(text.letters.front())) end();
  add_words(words_in(text, is_list(text.letters)));
  if (is_space(text.letters.back())) end();
}

Text joined(const std::vector<Field>& fields) {
  Value all{{}, true};
  for (const Field& field : fields) all.words.push_back(field.text);
  return all.joined();
}

}  // namespace moesim::shell
