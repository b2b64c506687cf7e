#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace moesim::model {

// The value of a variable; nothing where it is not known.
using ShellLookup = std::function<std::optional<std::string>(const std::string& name)>;

// The value of "A * B + 2", as a shell's "$((...))" has it: a sum of products of whole numbers,
// variables and such sums in brackets; nothing for another, and beyond 64 bits.
std::optional<std::int64_t> shell_arithmetic(const std::string& text, const ShellLookup& lookup);

}  // namespace moesim::model
