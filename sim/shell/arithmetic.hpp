#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace moesim::shell {

// The value of a variable; nothing where it is not known.
using Lookup = std::function<std::optional<std::string>(const std::string& name)>;

// The value of "A * B + 2", as a shell's "$((...))" has it, with its operators but for those of
// bits, and "A > B ? C : D"; nothing for another, for a variable that is not known, and beyond 64
// bits.
std::optional<std::int64_t> arithmetic_of(const std::string& text, const Lookup& lookup);

// What one part of "((...))" does to a variable: of "N *= 4" the name is N, the value "N * (4)".
struct Change {
  std::string name;
  std::string value;
};
std::optional<Change> change_in(const std::string& text);

}  // namespace moesim::shell
