#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/shell/truth.hpp"

namespace moesim::shell {

// A word of "[ ... ]" or "[[ ... ]]", with quotes taken off and variables put in; one that is not
// known stands as it is written.
struct ConditionWord {
  std::string text;
  std::string pattern = {};  // the text, with a '\' before each sign of a pattern that is quoted
  bool is_sign = false;      // && || ! ( )
};

// How the words are meant.
struct ConditionRules {
  bool is_double = false;  // "[[ ]]": patterns, arithmetic
  std::function<std::optional<std::int64_t>(const std::string&)> number;
  std::function<bool(const std::string&)> is_set;  // a variable, in the script
};

// What "[ WORDS ]" or "[[ WORDS ]]" is: with =, ==, !=, <, >, -eq, -ne, -lt, -le, -gt, -ge, -z, -n,
// -v, =~ of letters, and, or, not and brackets. Files, other tests and words that are not known are
// `maybe`.
Truth condition_of(const std::vector<ConditionWord>& words, const ConditionRules& rules);

// No variable in it that is not known, nor the output of a command.
bool is_known(const std::string& text);

// Whether the whole text is as the pattern, with * ? [...] in it; `maybe` for other patterns.
Truth matches(const std::string& text, const std::string& pattern);

// The text with a '\' before each letter that a pattern would read otherwise.
std::string quoted_pattern(const std::string& text);

}  // namespace moesim::shell
