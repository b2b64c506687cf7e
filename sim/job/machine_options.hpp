#pragma once

#include "sim/job/job_option_table.hpp"

namespace moesim::job {

// The profile, the cluster and the dispatcher.
void declare_documents(JobOptionTable& table);
void declare_placement(JobOptionTable& table);
// How kernels are launched, fused and overlapped.
void declare_kernels(JobOptionTable& table);
// What the host costs.
void declare_host(JobOptionTable& table);

}  // namespace moesim::job
