#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/error.hpp"

namespace moesim {

// A document neither ships nor is a file.
class UnknownDocument : public UsageError {
 public:
  UnknownDocument(std::string name, const std::string& message)
      : UsageError(message), name_(std::move(name)) {}
  const std::string& name() const { return name_; }  // as it was asked for

 private:
  std::string name_;
};

// The first of the places below that has the file or folder `name` ("traces", "plot/plot.py"), with
// that name behind it: the folder that holds $MOESIM_PROFILES; share/moesim beside the folder of
// the running program, where `cmake --install` puts it; the source tree it was built from (also in
// tools/ there); share/moesim of the prefix that it was built for. Nothing if none has it.
std::optional<std::string> find_shipped(const std::string& name);
// Those places, for messages.
std::vector<std::string> shipped_places();

// The documents that ship with the program. `kind` is the folder under profiles/: "hardware",
// "models", "clusters" or "schema". They are looked for in $MOESIM_PROFILES if that is set, else as
// find_shipped() does; "" if there are none.
std::string shipped_folder();
std::vector<std::string> shipped_names(const std::string& kind);  // sorted, without ".json"
// Where those of a kind are looked for, for messages: "/x/hardware, as MOESIM_PROFILES says".
std::string searched_places(const std::string& kind);

// The file behind `name_or_path`: a shipped name, or a path to a file of the user's own (anything
// with a '/' or ending in .json). Throws UnknownDocument that lists the shipped names, with the
// nearest one as a suggestion, or that says what to give for a model's id of Hugging Face; Error
// that says what to set where there are no shipped documents at all.
std::string find_document(const std::string& kind, const std::string& name_or_path);

// The trace behind `name_or_path`: the path itself where there is such a file or folder, else the
// shipped trace of that name, else the path.
std::string find_trace(const std::string& name_or_path);

// The member of `known` that is one letter from `word`, in capitals or not, else the first that
// begins with it, else the nearest by edit distance, else the first that has it as a part between
// hyphens; "" if nothing is near.
std::string nearest(const std::string& word, const std::vector<std::string>& known);
// " (did you mean 'x'?)" or "".
std::string suggestion(const std::string& word, const std::vector<std::string>& known);

}  // namespace moesim
