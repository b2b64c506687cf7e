#pragma once

#include <string>

#include "sim/uncertainty/published/step_errors.hpp"

namespace moesim::uncertainty {

// The residuals of a document that ships ("steps", "training"), and the errors that they make. Each
// file is read once in a process and kept; which file it is that ships is asked at each call, as of
// every other document ($MOESIM_PROFILES). Safe to use from threads. Throw as Residuals::load().
const Residuals& shipped_residuals(const std::string& name);
const StepErrors& shipped_errors(const std::string& name);

}  // namespace moesim::uncertainty
