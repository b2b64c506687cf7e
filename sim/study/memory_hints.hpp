#pragma once

#include <cstdint>
#include <optional>
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
  std::string before = {};  // another one to be given with it: "--checkpointing full"; "": none
  // The present one, where the option alone would change it; to be given too.
  std::optional<std::int64_t> global_batch;
  Bytes need;  // then, per GPU
  bool fits = false;
};

// What would make the step that `outcome` describes need at least 2 % less memory, one option
// changed at a time: checkpointing, a higher ZeRO stage, more expert parallelism, smaller
// micro-batches of the same global batch; in that order. Where none of these is enough, pairs of
// them that are follow, one for each two options. The rows that an exchange holds
// are scaled with the tokens.
std::vector<MemoryHint> memory_hints(const scenario::Scenario& scenario, const Outcome& outcome);

}  // namespace moesim::study
