#pragma once

#include "sim/job/job_option_table.hpp"

namespace moesim::job {

// The model, the GPUs and how they share it.
void declare_layout(JobOptionTable& table);
void declare_batch(JobOptionTable& table);
void declare_schedule(JobOptionTable& table);
// What data-parallel ranks share.
void declare_sharing(JobOptionTable& table);

}  // namespace moesim::job
