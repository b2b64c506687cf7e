#pragma once

#include "sim/scenario/document_cache.hpp"
#include "sim/study/search/training_space.hpp"
#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// The line as `train` takes it, with the first value of each list; without the sizes of a layout.
CommandLine first_values(const CommandLine& line);

// Puts the lists that were typed in the place of the usual values. Throws UsageError naming the
// flag.
void take_lists(const CommandLine& line, scenario::DocumentCache& documents,
                study::TrainingSpace& space);

// Adds the values of a job's layout that are not among the usual ones, so that it is a candidate,
// but for how its layers are divided. What was typed stays as it is.
void add_layout(const CommandLine& line, const training::TrainingJob& job,
                study::TrainingSpace& space);

// A note on each option that was typed and has no effect in any candidate.
void note_idle_options(const CommandLine& line, const study::TrainingSpace& space);

}  // namespace moesim::tool
