#pragma once

// The CUDA side of device.cuh; include that. sm_80 and later.

#include <cuda_runtime.h>

namespace moesim::kernels {

inline constexpr unsigned all_lanes = 0xffffffffU;

MOESIM_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
MOESIM_DEVICE int block_index() { return static_cast<int>(blockIdx.x); }
MOESIM_DEVICE int block_threads() { return static_cast<int>(blockDim.x); }
// Where all launches have the same number: known to the compiler.
template <int launched>
MOESIM_DEVICE int block_threads() {
  return launched;
}
MOESIM_DEVICE int grid_blocks() { return static_cast<int>(gridDim.x); }
MOESIM_DEVICE unsigned char* shared_memory() {
  extern __shared__ __align__(128) unsigned char moesim_shared[];
  return moesim_shared;
}

MOESIM_DEVICE void sync_block() { __syncthreads(); }
MOESIM_DEVICE void sync_warp() { __syncwarp(); }
// The `threads` threads of a block's part `part` alone; parts are of equal size, whole warps, one
// behind the other, 15 at most.
MOESIM_DEVICE void sync_part(int part, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(part + 1), "r"(threads) : "memory");
}

template <typename Value>
MOESIM_DEVICE Value shuffle(Value value, int from) {
  return __shfl_sync(all_lanes, value, from);
}
template <typename Value>
MOESIM_DEVICE Value shuffle_xor(Value value, int mask) {
  return __shfl_xor_sync(all_lanes, value, mask);
}
template <typename Value>
MOESIM_DEVICE Value shuffle_up(Value value, int distance) {
  return __shfl_up_sync(all_lanes, value, static_cast<unsigned>(distance));
}
MOESIM_DEVICE std::uint32_t ballot(bool vote) { return __ballot_sync(all_lanes, vote); }
MOESIM_DEVICE std::uint32_t warp_max(std::uint32_t value) {
  return __reduce_max_sync(all_lanes, value);
}
MOESIM_DEVICE std::uint32_t warp_min(std::uint32_t value) {
  return __reduce_min_sync(all_lanes, value);
}
MOESIM_DEVICE std::uint32_t warp_sum(std::uint32_t value) {
  return __reduce_add_sync(all_lanes, value);
}

template <typename Value>
MOESIM_DEVICE Value atomic_add(Value* to, Value value) {
  return atomicAdd(to, value);
}
MOESIM_DEVICE std::uint32_t atomic_max(std::uint32_t* to, std::uint32_t value) {
  return atomicMax(to, value);
}

MOESIM_DEVICE int popcount(std::uint32_t value) { return __popc(value); }
MOESIM_DEVICE int leading_zeros(std::uint32_t value) { return __clz(static_cast<int>(value)); }

template <typename Value>
MOESIM_DEVICE Value load_constant(const Value* from) {
  return __ldg(from);
}
template <>
MOESIM_DEVICE Vector16 load_constant(const Vector16* from) {
  const uint4 words = __ldg(reinterpret_cast<const uint4*>(from));
  return {{words.x, words.y, words.z, words.w}};
}
template <typename Value>
MOESIM_DEVICE void store_streaming(Value* to, Value value) {
  __stcs(to, value);
}
template <>
MOESIM_DEVICE void store_streaming(Vector16* to, Vector16 value) {
  __stcs(reinterpret_cast<uint4*>(to),
         make_uint4(value.word[0], value.word[1], value.word[2], value.word[3]));
}

MOESIM_DEVICE float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }

// A few units in the last place of fp32; a quotient by more than 2^126 may be 0.
MOESIM_DEVICE float fast_exp(float x) { return __expf(x); }
MOESIM_DEVICE float fast_divide(float a, float b) { return __fdividef(a, b); }

MOESIM_DEVICE unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// 16 bytes from global to shared memory past the registers; zeros where not `valid`.
MOESIM_DEVICE void copy_async_16(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)),
               "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
MOESIM_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int groups_left>
MOESIM_DEVICE void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(groups_left) : "memory");
}

// Four 8 x 8 matrices of 16-bit elements: lane l names row l % 8 of matrix l / 8 and gets elements
// 2 (l % 4) and the next of row l / 4 of each.
MOESIM_DEVICE void load_matrices(std::uint32_t (&fragment)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(shared_address(row))
               : "memory");
}

// d += a b, a [16, 16] row-major and b [16, 8] column-major in bf16, d [16, 8] in fp32.
MOESIM_DEVICE void multiply_matrices(float (&d)[4], const std::uint32_t (&a)[4],
                                     const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace moesim::kernels
