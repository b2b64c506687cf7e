#pragma once

#include <vector>

#include "sim/training/training_job.hpp"
#include "tools/moesim/command.hpp"

namespace moesim::tool {

// The flags of a training job as `train` takes them: its layout, GPU, precision and software.
std::vector<Flag> train_flags();

// The job that they ask for. Throws UsageError naming the flag; whether the layout can be is for
// parallel::check_layout() to say. Of several jobs at once nothing is said of options without
// effect on one of them.
training::TrainingJob requested_job(const CommandLine& line, bool of_several = false);

// Says where --cluster is of other NVLink domains than the GPU's usual one.
void note_cluster(const CommandLine& line, const training::TrainingJob& job);

}  // namespace moesim::tool
