#pragma once

#include "kernels/base/device.cuh"

namespace moesim::kernels {

inline constexpr int scan_words = warp_lanes + 1;  // of shared scratch

struct ScanResult {
  std::uint32_t before = 0;  // the sum over threads of lower index
  std::uint32_t total = 0;
};

// The sum over the lanes up to this one.
MOESIM_DEVICE std::uint32_t warp_scan(std::uint32_t value) {
  for (int distance = 1; distance < warp_lanes; distance *= 2) {
    const std::uint32_t below = shuffle_up(value, distance);
    if (lane_index() >= distance) value += below;
  }
  return value;
}

// The sum of a value that all lanes of a warp have, over warps of lower index, and over all. One
// barrier only, so `scratch`, a word of shared memory per warp, is not free before another.
MOESIM_DEVICE ScanResult scan_warps(std::uint32_t of_warp, int warps, std::uint32_t* scratch) {
  if (lane_index() == 0) scratch[warp_index()] = of_warp;
  sync_block();
  const std::uint32_t value = lane_index() < warps ? scratch[lane_index()] : 0;
  return {warp_sum(lane_index() < warp_index() ? value : 0), warp_sum(value)};
}

// All threads of the block; `scratch` holds scan_words words of shared memory, free again on
// return.
MOESIM_DEVICE ScanResult block_scan(std::uint32_t value, std::uint32_t* scratch) {
  const std::uint32_t inclusive = warp_scan(value);
  if (lane_index() == warp_lanes - 1) scratch[warp_index()] = inclusive;
  sync_block();
  if (warp_index() == 0) {
    const int warps = block_threads() / warp_lanes;
    const std::uint32_t own = lane_index() < warps ? scratch[lane_index()] : 0;
    const std::uint32_t sum = warp_scan(own);
    scratch[lane_index()] = sum - own;
    if (lane_index() == warp_lanes - 1) scratch[warp_lanes] = sum;
  }
  sync_block();
  const ScanResult result{scratch[warp_index()] + inclusive - value, scratch[warp_lanes]};
  sync_block();
  return result;
}

}  // namespace moesim::kernels
