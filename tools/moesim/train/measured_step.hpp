#pragma once

#include <optional>

#include "sim/study/explain/explanation.hpp"
#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// What --measured and the files of a command line say of a step: a time such as 812ms, traces of
// torch.profiler (several after --measured are separated by commas), or both; nothing where neither
// is given. Throws UsageError for what is neither, and as read_traced_step().
std::optional<study::Measured> requested_measured(const CommandLine& line);

// Throws UsageError for traces of more GPUs than the job has.
void check_measured_gpus(const study::Measured& measured, int gpus);

}  // namespace moesim::tool
