#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/job/job_option_table.hpp"

namespace moesim::job {

// The options of a job's routing: those of a scenario that mean the same here, and what of a step
// is drawn.
void declare_routing(JobOptionTable& table);
// Loads of experts: one given instead of drawn routing, and copies of hot experts.
void declare_loads(JobOptionTable& table);

// What the options ask for; nothing where none of them is given. `job` has its profile, cluster,
// model and layout. Throws UsageError naming the flag. Options without effect go to `notes`, unless
// the job is one of several.
std::optional<training::DrawnRouting> drawn_routing(const scenario::OptionValues& typed,
                                                    const training::TrainingJob& job,
                                                    bool of_several,
                                                    std::vector<std::string>& notes);

}  // namespace moesim::job
