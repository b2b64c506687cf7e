#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace moesim {

// Flags of a command line without their dashes, and their values as typed: a name, a path, a list
// of either ("8,16").
using TypedFlags = std::map<std::string, std::string>;

// Whether `text` names --flag itself, not a longer one that begins alike: "--dispatcher deepep"
// names --dispatcher and not --dispatch. `flag` is without dashes.
bool names_flag(std::string_view text, std::string_view flag);

// Calls `run`. An error that it throws about a document or a file that one flag alone asked for
// (UnknownDocument, UnreadableFile, a UsageError or Error whose message starts with the file) goes
// on as the same kind of error with "--FLAG: " before its message; every other one as it is.
void with_flag_of_errors(const TypedFlags& flags, const std::function<void()>& run);

}  // namespace moesim
