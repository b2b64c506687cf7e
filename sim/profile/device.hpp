#pragma once

#include <cstdint>
#include <string>

#include "sim/base/formats/document.hpp"
#include "sim/base/units.hpp"

namespace moesim::profile {

// One GPU of the profiled node and how it is tied to its peers.
struct Device {
  // Reads an element of a profile's "devices"; errors name file and key.
  static Device read(const Node& node);

  std::string name;         // "NVIDIA A100-SXM4-80GB"
  std::int64_t sms = 0;     // streaming multiprocessors
  Bytes hbm_bytes;          // capacity
  Bandwidth hbm_bandwidth;  // peak
  Bytes l2_bytes;
  double peak_bf16_flops = 0;  // dense tensor-core FLOP/s
  // What products in bf16 hold under load that goes on, within the board's power; 0: not known.
  double sustained_bf16_flops = 0;
  // What products in FP8 hold in a step, one scale per tensor (MXFP8 too) and scales by block; 0:
  // not known, the energy of an FP8 FLOP says it.
  double sustained_fp8_flops = 0;
  double sustained_fp8_block_flops = 0;
  // The time that such products take for a row of zeros, as padding is, over that of another row.
  double sustained_padding_share = 1;
  Bandwidth nvlink_bandwidth;  // peak per GPU and direction; 0: its GPUs are on PCIe alone
  // Peak to and from the host's memory, per GPU and direction: PCIe or NVLink-C2C; 0: not said.
  Bandwidth host_bandwidth;
  Bandwidth host_copy_bandwidth;   // the slower direction of long copies as measured; 0: it was not
  std::int64_t gpus_per_node = 0;  // in one NVLink domain
  std::string usual_cluster;       // shipped cluster its nodes usually form; "": not said
};

}  // namespace moesim::profile
