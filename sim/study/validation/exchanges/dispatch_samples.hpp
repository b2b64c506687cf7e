#pragma once

#include <string>
#include <vector>

#include "sim/profile/moe_exchange_law.hpp"

namespace moesim::study {

// One measured stage of a dispatcher, with all that its law takes.
struct DispatchSample {
  std::string system;  // "h100_sxm", or as internode_alltoall.csv says it
  std::string device;  // of the shipped dispatchers' machines
  std::string library;
  profile::DispatcherStage stage = profile::DispatcherStage::dispatch;
  profile::DispatchGroup group;
  profile::DispatchRates rates;
  profile::DispatchLoad load;
  double row_bytes = 0;
  double hidden = 7168;  // values of a row
  int sms = 0;
  double time_us = 0;
  std::string where;  // "4096 tokens (hidden 7168, top-8 of 256, 24 SMs)"
};

// deepep_normal.csv and deepep_lowlatency.csv of a folder, packed or plain: the kernels' time, FP8
// on dispatch and bf16 on combine. A node of GB200 or GB300 is taken for a board of 4 GPUs, as the
// source's launcher has it: SMs then spend as long on a copy as on B200 (327 and 336 ns); with 8
// they would be 1.6 times faster.
std::vector<DispatchSample> load_deepep(const std::string& folder);
std::vector<DispatchSample> load_deepep_low_latency(const std::string& folder);
// NVLinkOneSided of trtllm_moe_alltoall_gb200.csv: NVFP4 on dispatch, bf16 on combine; "balanced",
// so that a token meets min(k, GPUs) of them.
std::vector<DispatchSample> load_one_sided(const std::string& folder);

// Dispatchers of internode_alltoall.csv. Bandwidths become times by what the sources' own tests
// count, rows to the GPU's own rank and node included:
//   DeepEP normal  across nodes a row for each distinct node of a token, inside one for each
//                  distinct rank (its tests/test_internode.py, "RDMA" and "NVL")
//   DeepEP LL      a row for each (token, expert) (tests/test_low_latency.py)
//   HybridEP       as DeepEP normal: algbw saturates at the NIC's line rate on 2 and 4 nodes of
//   H100
//                  and at 0.74 of NVLink's on GB200 only if read so
// SMs that a source does not state are the dispatcher's usual ones.
std::vector<DispatchSample> load_across(const std::string& folder);

}  // namespace moesim::study
