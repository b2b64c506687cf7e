#pragma once

// The host side of device.cuh; include that.

#include <cmath>
#include <cstring>

#include "kernels/base/simt_thread.hpp"

namespace moesim::kernels {

MOESIM_DEVICE int thread_index() { return simt::place().thread; }
MOESIM_DEVICE int block_index() { return simt::place().block; }
MOESIM_DEVICE int block_threads() { return simt::place().threads; }
// A GPU's launches all have `launched` threads; those of tests may have fewer.
template <int launched>
MOESIM_DEVICE int block_threads() {
  return simt::place().threads;
}
MOESIM_DEVICE int grid_blocks() { return simt::place().blocks; }
MOESIM_DEVICE unsigned char* shared_memory() { return simt::place().shared; }

MOESIM_DEVICE void sync_block(int line = __builtin_LINE()) { simt::block_barrier(line); }
MOESIM_DEVICE void sync_part(int part, int threads, int line = __builtin_LINE()) {
  simt::part_barrier(part, threads, line);
}
MOESIM_DEVICE void sync_warp(int line = __builtin_LINE()) { simt::warp_exchange(0, line); }

template <typename Value>
MOESIM_DEVICE Value shuffle(Value value, int from, int line = __builtin_LINE()) {
  static_assert(sizeof(Value) == 4);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, 4);
  bits = static_cast<std::uint32_t>(simt::warp_exchange(bits, line)[from & 31]);
  std::memcpy(&value, &bits, 4);
  return value;
}

template <typename Value>
MOESIM_DEVICE Value shuffle_xor(Value value, int mask, int line = __builtin_LINE()) {
  return shuffle(value, (simt::place().thread % warp_lanes) ^ mask, line);
}

// The value `distance` lanes below; a lane that has none there keeps its own.
template <typename Value>
MOESIM_DEVICE Value shuffle_up(Value value, int distance, int line = __builtin_LINE()) {
  const int lane = simt::place().thread % warp_lanes;
  return shuffle(value, lane >= distance ? lane - distance : lane, line);
}

MOESIM_DEVICE std::uint32_t ballot(bool vote, int line = __builtin_LINE()) {
  const std::uint64_t* votes = simt::warp_exchange(vote ? 1 : 0, line);
  std::uint32_t mask = 0;
  for (int lane = 0; lane < warp_lanes; ++lane)
    mask |= static_cast<std::uint32_t>(votes[lane]) << lane;
  return mask;
}

MOESIM_DEVICE std::uint32_t warp_max(std::uint32_t value, int line = __builtin_LINE()) {
  const std::uint64_t* values = simt::warp_exchange(value, line);
  std::uint64_t best = 0;
  for (int lane = 0; lane < warp_lanes; ++lane) best = values[lane] > best ? values[lane] : best;
  return static_cast<std::uint32_t>(best);
}

MOESIM_DEVICE std::uint32_t warp_min(std::uint32_t value, int line = __builtin_LINE()) {
  return ~warp_max(~value, line);
}

MOESIM_DEVICE std::uint32_t warp_sum(std::uint32_t value, int line = __builtin_LINE()) {
  const std::uint64_t* values = simt::warp_exchange(value, line);
  std::uint64_t sum = 0;
  for (int lane = 0; lane < warp_lanes; ++lane) sum += values[lane];
  return static_cast<std::uint32_t>(sum);
}

// Threads run one at a time between collectives.
template <typename Value>
MOESIM_DEVICE Value atomic_add(Value* to, Value value) {
  const Value before = *to;
  *to = before + value;
  return before;
}

MOESIM_DEVICE std::uint32_t atomic_max(std::uint32_t* to, std::uint32_t value) {
  const std::uint32_t before = *to;
  if (value > before) *to = value;
  return before;
}

MOESIM_DEVICE int popcount(std::uint32_t value) { return __builtin_popcount(value); }
MOESIM_DEVICE int leading_zeros(std::uint32_t value) {
  return value == 0 ? 32 : __builtin_clz(value);
}

// Read-only data, and data that is not used again soon.
template <typename Value>
MOESIM_DEVICE Value load_constant(const Value* from) {
  return *from;
}
template <typename Value>
MOESIM_DEVICE void store_streaming(Value* to, Value value) {
  *to = value;
}

MOESIM_DEVICE float multiply_add(float a, float b, float c) { return std::fma(a, b, c); }
MOESIM_DEVICE float fast_exp(float x) { return std::exp(x); }
MOESIM_DEVICE float fast_divide(float a, float b) { return a / b; }

MOESIM_DEVICE void copy_async_16(void* to, const void* from, bool valid) {
  simt::copy_async(to, valid ? from : nullptr);
}
MOESIM_DEVICE void commit_copies() { simt::commit_copies(); }
template <int groups_left>
MOESIM_DEVICE void wait_for_copies() {
  simt::wait_for_copies(groups_left);
}

// Four 8 x 8 matrices of 16-bit elements (PTX ldmatrix.x4): lane l names row l % 8 of matrix
// l / 8 and gets elements 2 (l % 4) and the next of row l / 4 of each.
MOESIM_DEVICE void load_matrices(std::uint32_t (&fragment)[4], const void* row,
                                 int line = __builtin_LINE()) {
  const auto own = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(row));
  const std::uint64_t* rows = simt::warp_exchange(own, line);
  const int lane = simt::place().thread % warp_lanes;
  for (int matrix = 0; matrix < 4; ++matrix) {
    const auto* from = reinterpret_cast<const unsigned char*>(
        static_cast<std::uintptr_t>(rows[matrix * 8 + lane / 4]));
    std::memcpy(&fragment[matrix], from + lane % 4 * 4, 4);
  }
}

namespace simt {
MOESIM_DEVICE float bf16_half(std::uint64_t word, int half) {
  const auto bits = static_cast<std::uint32_t>(word >> (16 * half)) << 16;
  float value = 0;
  std::memcpy(&value, &bits, 4);
  return value;
}
}  // namespace simt

// d += a b, a [16, 16] row-major and b [16, 8] column-major in bf16, d [16, 8] in fp32, in the
// fragments of PTX mma.m16n8k16: element (row r, column c) of d is in lane 4 (r % 8) + c / 2.
MOESIM_DEVICE void multiply_matrices(float (&d)[4], const std::uint32_t (&a)[4],
                                     const std::uint32_t (&b)[2], int line = __builtin_LINE()) {
  std::uint64_t left[2][warp_lanes];
  const std::uint64_t* all = simt::warp_exchange(a[0] | std::uint64_t{a[1]} << 32, line);
  std::memcpy(left[0], all, sizeof left[0]);
  all = simt::warp_exchange(a[2] | std::uint64_t{a[3]} << 32, line);
  std::memcpy(left[1], all, sizeof left[1]);
  const std::uint64_t* right = simt::warp_exchange(b[0] | std::uint64_t{b[1]} << 32, line);
  const int lane = simt::place().thread % warp_lanes;
  for (int part = 0; part < 4; ++part) {
    const int row = lane / 4 + part / 2 * 8;
    const int column = lane % 4 * 2 + part % 2;
    for (int k = 0; k < 16; ++k) {
      const int low = k % 8;
      const int half = low % 2;
      const float x = simt::bf16_half(left[k / 8][row % 8 * 4 + low / 2], half + row / 8 * 2);
      const float y = simt::bf16_half(right[column * 4 + low / 2], half + k / 8 * 2);
      d[part] += x * y;
    }
  }
}

}  // namespace moesim::kernels
