#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// The value of a flag, or its whole number from 1 to `high`. Throws UsageError naming the flag
// where it is missing, with `why` it is needed, or is no such number.
std::string needed_value(const CommandLine& line, const std::string& flag, const std::string& why);
int needed_whole(const CommandLine& line, const std::string& flag, int high,
                 const std::string& why);
int needed_top_k(const CommandLine& line);

// Throws UsageError for a flag that means nothing for this kind of file, which would be passed over
// in silence.
void refuse_other_flags(const CommandLine& line, const std::string& kind,
                        const std::vector<std::string>& allowed);
// These and what every trace takes.
std::vector<std::string> with_trace_flags(std::vector<std::string> flags);

// Whether the names of all files end in one of these.
bool all_end_with(const CommandLine& line, std::initializer_list<const char*> ends);

// The largest of the measured sizes up to 64 MiB, else the first, as --bytes takes it: "64MiB".
std::string size_to_try(const std::vector<double>& bytes);

// The name of a document that is written to `out`: letters, digits, dots, - and _ of the file's, as
// the schema has it; other characters become -.
std::string document_name(const CommandLine& line, const std::string& out);

}  // namespace moesim::tool
