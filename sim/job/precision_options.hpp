#pragma once

#include "sim/job/job_option_table.hpp"

namespace moesim::job {

// The format of products, and what memory keeps of activations and moments.
void declare_precision(JobOptionTable& table);
// The precisions of gradients, core attention, head and rows on their way to experts.
void declare_other_precisions(JobOptionTable& table);

}  // namespace moesim::job
