#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sim/base/error.hpp"

namespace moesim::profile {

// A request of an operation whose parameters are not those that it takes. Its text names parameters
// as columns of a file have them.
class WrongParameters : public UsageError {
 public:
  // The same of options: "--op gemm: --m is missing; it needs --m, --n, --k".
  const std::string& of_options() const { return of_options_; }

 protected:
  WrongParameters(const std::string& text, std::string of_options)
      : UsageError(text), of_options_(std::move(of_options)) {}

 private:
  std::string of_options_;
};

// Without one of the parameters that it needs.
class MissingParameter : public WrongParameters {
 public:
  // `other`: what would do in their place: ", or a matrix".
  MissingParameter(const std::string& op, const std::string& name,
                   const std::vector<std::string>& needed, const std::string& other = "");
};

// With one that it does not take.
class UnknownParameter : public WrongParameters {
 public:
  // `taken`: all that it takes. `why`: ": combined rows are bf16"; "": a known name, if any is
  // near, is suggested.
  UnknownParameter(const std::string& op, const std::string& name,
                   const std::vector<std::string>& taken, const std::string& why = "");
};

}  // namespace moesim::profile
