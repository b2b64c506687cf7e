#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moesim {

// A value of an enumeration as users write it, and what it means in a help text.
template <class Value>
struct EnumName {
  Value value;
  const char* name;
  const char* meaning = "";
};

// All values of an enumeration, in the order of help texts and messages:
//   constexpr EnumNames<Mode, 2> mode_names{{{Mode::train, "train"}, {Mode::prefill, "prefill"}}};
template <class Value, std::size_t count>
using EnumNames = std::array<EnumName<Value>, count>;

// Throws UsageError "WHERE: unknown value 'TEXT' ...; choose from NAMES" with the nearest name as a
// suggestion. `where` is a flag such as "--mode", or a file and key.
[[noreturn]] void refuse_name(const std::string& where, std::string_view text,
                              const std::vector<std::string>& names);

// The name of a value. Precondition: the table has it; "" otherwise.
template <class Value, std::size_t count>
constexpr const char* name_in(const EnumNames<Value, count>& names, Value value) {
  for (const EnumName<Value>& known : names) {
    if (known.value == value) return known.name;
  }
  return "";
}

// The value of a name; nothing where the table has no such name.
template <class Value, std::size_t count>
constexpr std::optional<Value> find_in(const EnumNames<Value, count>& names,
                                       std::string_view text) {
  for (const EnumName<Value>& known : names) {
    if (text == known.name) return known.value;
  }
  return std::nullopt;
}

// The value of a name; throws as refuse_name() does where the table has no such name.
template <class Value, std::size_t count>
Value value_in(const EnumNames<Value, count>& names, std::string_view text,
               const std::string& where) {
  if (const std::optional<Value> found = find_in(names, text)) return *found;
  std::vector<std::string> all;
  for (const EnumName<Value>& known : names) all.emplace_back(known.name);
  refuse_name(where, text, all);
}

// The names of the values in `bits`, where each value is one bit: "layernorm,moe_act"; "none".
template <class Value, std::size_t count>
std::string names_of_bits(const EnumNames<Value, count>& names, unsigned bits) {
  std::string text;
  for (const EnumName<Value>& known : names) {
    if ((bits & static_cast<unsigned>(known.value)) == 0) continue;
    if (!text.empty()) text += ',';
    text += known.name;
  }
  return text.empty() ? "none" : text;
}

}  // namespace moesim
