#pragma once

#include <string>
#include <vector>

namespace moesim::tool {

// Runs a program (looked up on PATH) and waits for it; its stdout goes to this stderr, or with
// `quiet` both its outputs go nowhere. Returns its exit code, 127 if it could not be started,
// 128 + n if signal n ended it.
int run_process(const std::vector<std::string>& words, bool quiet);

// The first interpreter that has matplotlib: $MOESIM_PYTHON if set, else python3, else
// /usr/bin/python3. "" if none has.
std::string plotting_python();
// Whether the interpreter of this name has a package; it is not loaded.
bool python_has(const std::string& python, const std::string& package);

}  // namespace moesim::tool
