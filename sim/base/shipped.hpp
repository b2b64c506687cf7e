#pragma once

#include <string>
#include <vector>

namespace moesim {

// The documents that ship with the program. `kind` is the folder under profiles/: "hardware",
// "models", "clusters" or "schema". They are looked for in $MOESIM_PROFILES if that is set, else
// beside the installed program (../share/moesim/profiles), else in the source tree it was built
// from.
std::string shipped_folder();
std::vector<std::string> shipped_names(const std::string& kind);  // sorted, without ".json"

// The file behind `name_or_path`: a shipped name, or a path to a file of the user's own (anything
// with a '/' or ending in .json). Throws UsageError that lists the shipped names, with the nearest
// one as a suggestion.
std::string find_document(const std::string& kind, const std::string& name_or_path);

// The member of `known` nearest to `word` by edit distance, or "" if nothing is near.
std::string nearest(const std::string& word, const std::vector<std::string>& known);
// " (did you mean 'x'?)" or "".
std::string suggestion(const std::string& word, const std::vector<std::string>& known);

}  // namespace moesim
