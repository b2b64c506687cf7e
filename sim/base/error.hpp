#pragma once

#include <stdexcept>
#include <string>

namespace moesim {

// The process exit codes of the command line. Nothing but `main` exits; everything else throws an
// Error that carries one of these.
enum class ExitCode : int {
  ok = 0,
  failure = 1,
  usage = 2,
  missing_hardware = 3,
  verification_failed = 4,
  quality_bar_not_met = 5,
  timeout = 124,
  interrupted = 130,
};

// An error a user can act on: what went wrong, why, and what to try. Programmer errors are
// assertions, expected absences are return values; neither is an Error.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, ExitCode code = ExitCode::failure)
      : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// A request that makes no sense as written: a bad flag, value, document or combination (exit 2).
class UsageError : public Error {
 public:
  explicit UsageError(const std::string& message) : Error(message, ExitCode::usage) {}
};

}  // namespace moesim
