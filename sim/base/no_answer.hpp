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

// A document or file has something else than it should, whatever is asked. The message names it.
class BrokenDocument : public UsageError {
 public:
  using UsageError::UsageError;
};

// Why one of several questions that were made of a request, such as a candidate of a search, has no
// answer and is left out. To be called in a handler: of a UsageError, a combination that cannot be,
// or NotMeasured. Every other error is of all of them, or a defect, and is thrown again: also that
// of a document that is broken, cannot be read or is not there.
std::string why_unanswered();

}  // namespace moesim
