#pragma once

#include <string>

#include "sim/study/validation/tables/validation.hpp"

namespace moesim::study {

// Exchanges among more GPUs or nodes than were measured, by the laws of sim/profile, against public
// tables under `folder` (nccl_intranode.csv and, where they are there, deepep_normal.csv,
// deepep_lowlatency.csv, trtllm_moe_alltoall_gb200.csv and internode_alltoall.csv; plain or
// .csv.gz), beside plain baselines and the scatter of repeated rows.
Validation validate_exchanges(const std::string& folder);

}  // namespace moesim::study
