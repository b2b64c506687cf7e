#pragma once

#include <string>

#include "sim/base/error.hpp"

namespace moesim {

// A request written as it should be whose values have no answer: a number below or above what can
// be, an exchange of one GPU, more experts a token than there are. Alone it is an error like any
// UsageError; a file of queries refuses that row and answers the others.
class NoAnswer : public UsageError {
 public:
  using UsageError::UsageError;
};

// More tokens than the memory of a GPU holds: fewer have an answer.
class BeyondMemory : public NoAnswer {
 public:
  using NoAnswer::NoAnswer;
};

// A profile or a cluster has no figures to answer by: another one, or a measurement, has.
class NotMeasured : public Error {
 public:
  explicit NotMeasured(const std::string& message) : Error(message) {}
};

}  // namespace moesim
