#pragma once

#include <string>
#include <vector>

#include "sim/base/units.hpp"
#include "sim/scenario/scenario.hpp"
#include "sim/study/sweep/outcome.hpp"

namespace moesim::study {

// A value of one option with which the step would need less memory.
struct MemoryHint {
  std::string option;  // without dashes
  std::string value;
  Bytes need;  // then, per GPU
  bool fits = false;
};

// What would make the step that `outcome` describes need at least 2 % less memory, one option
// changed at a time: checkpointing, a higher ZeRO stage, more expert parallelism, smaller
// micro-batches; in that order. The rows that an exchange holds are scaled with the tokens.
std::vector<MemoryHint> memory_hints(const scenario::Scenario& scenario, const Outcome& outcome);

}  // namespace moesim::study
