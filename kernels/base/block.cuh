#pragma once

#include "kernels/base/device.cuh"

namespace moesim::kernels {

inline constexpr int scan_words = warp_lanes + 1;  // of shared scratch

struct ScanResult {
  std::uint32_t before = 0;  // the sum over threads of lower index
  std::uint32_t total = 0;
};

// All threads of the block; `scratch` holds scan_words words of shared memory, free again on
// return.
MOESIM_DEVICE ScanResult block_scan(std::uint32_t value, std::uint32_t* scratch) {
  std::uint32_t inclusive = value;
  for (int distance = 1; distance < warp_lanes; distance *= 2) {
    const std::uint32_t below = shuffle_up(inclusive, distance);
    if (lane_index() >= distance) inclusive += below;
  }
  if (lane_index() == warp_lanes - 1) scratch[warp_index()] = inclusive;
  sync_block();
  if (warp_index() == 0) {
    const int warps = block_threads() / warp_lanes;
    const std::uint32_t own = lane_index() < warps ? scratch[lane_index()] : 0;
    std::uint32_t sum = own;
    for (int distance = 1; distance < warp_lanes; distance *= 2) {
      const std::uint32_t below = shuffle_up(sum, distance);
      if (lane_index() >= distance) sum += below;
    }
    scratch[lane_index()] = sum - own;
    if (lane_index() == warp_lanes - 1) scratch[warp_lanes] = sum;
  }
  sync_block();
  const ScanResult result{scratch[warp_index()] + inclusive - value, scratch[warp_lanes]};
  sync_block();
  return result;
}

}  // namespace moesim::kernels
