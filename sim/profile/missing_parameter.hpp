#pragma once

#include <string>
#include <vector>

#include "sim/base/error.hpp"

namespace moesim::profile {

// A request of an operation without one of the parameters that it needs. Its text names parameters
// as columns of a file have them.
class MissingParameter : public UsageError {
 public:
  // `other`: what would do in their place: ", or a matrix".
  MissingParameter(std::string op, std::string name, std::vector<std::string> needed,
                   std::string other = "");
  // The same of options: "--op gemm: --m is missing; it needs --m, --n, --k".
  std::string of_options() const;

 private:
  std::string op_;
  std::string name_;
  std::vector<std::string> needed_;
  std::string other_;
};

}  // namespace moesim::profile
