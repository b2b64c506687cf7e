#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>

#include "kernels/base/cuda_check.hpp"
#include "kernels/measure/cuda/device/device_kernels.hpp"

namespace moesim::kernels::measure::cuda {
namespace {

constexpr int threads = 256;

__device__ std::uint64_t wall_clock() {
  std::uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

__global__ void hold(const volatile std::uint32_t* flag, std::uint32_t ticket,
                     std::uint64_t patience_ns, volatile std::uint32_t* expired) {
  const std::uint64_t start = wall_clock();
  // Signed distance: tickets may wrap.
  while (static_cast<std::int32_t>(*flag - ticket) < 0) {
    if (wall_clock() - start <= patience_ns) continue;
    *expired = ticket;
    return;
  }
}

__global__ void clocks(SmClock* out) {
  if (threadIdx.x != 0) return;
  unsigned sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  if (sm >= most_sms) return;
  out[sm] = {static_cast<std::uint64_t>(clock64()), wall_clock()};
}

// splitmix64 (Steele, Lea and Flood 2014): every index its own bits.
__device__ std::uint64_t scramble(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

// In (-1, 1), never 0.
__device__ float unit(std::uint64_t seed, std::size_t index) {
  const auto bits = static_cast<std::uint32_t>(scramble(seed * 0x100000001b3ULL + index) >> 41);
  return (static_cast<float>(bits) + 0.5F) * 0x1p-22F - 1.0F;
}

__device__ std::size_t first() { return blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; }
__device__ std::size_t stride() { return gridDim.x * std::size_t{blockDim.x}; }

__global__ void random_bf16(__nv_bfloat16* out, std::size_t count, std::uint64_t seed,
                            float scale) {
  for (std::size_t at = first(); at < count; at += stride()) {
    out[at] = __float2bfloat16(scale * unit(seed, at));
  }
}

__global__ void random_floats(float* out, std::size_t count, std::uint64_t seed) {
  for (std::size_t at = first(); at < count; at += stride()) out[at] = unit(seed, at);
}

__global__ void random_e4m3(std::uint8_t* out, std::size_t count, std::uint64_t seed) {
  for (std::size_t at = first(); at < count; at += stride()) {
    out[at] = __nv_cvt_float_to_fp8(256 * unit(seed, at), __NV_SATFINITE, __NV_E4M3);
  }
}

__global__ void random_scales(float* out, std::size_t count, std::uint64_t seed) {
  for (std::size_t at = first(); at < count; at += stride()) {
    out[at] = exp2f(unit(seed, at) - 8);
  }
}

__global__ void empty() {}

__device__ std::uint32_t word_of(std::uint32_t rank, std::uint32_t salt, std::size_t at) {
  return rank << 24 | ((static_cast<std::uint32_t>(at) + salt) & 0xffffffU);
}

__global__ void pattern(std::uint32_t* out, std::size_t words, std::uint32_t rank,
                        std::uint32_t salt) {
  for (std::size_t at = first(); at < words; at += stride()) out[at] = word_of(rank, salt, at);
}

__global__ void compare(const std::uint32_t* in, std::size_t words, std::uint32_t rank,
                        std::uint32_t salt, unsigned long long* wrong) {
  unsigned long long mine = 0;
  for (std::size_t at = first(); at < words; at += stride()) {
    mine += in[at] != word_of(rank, salt, at);
  }
  if (mine > 0) atomicAdd(wrong, mine);
}

__global__ void gather(const std::uint16_t* from, std::uint16_t* to, std::size_t count,
                       std::size_t apart) {
  for (std::size_t at = first(); at < count; at += stride()) to[at] = from[at * apart];
}

__global__ void read(const uint4* __restrict__ from, std::size_t count, std::uint32_t* sink) {
  std::uint32_t sum = 0;
  for (std::size_t at = first(); at < count; at += stride()) {
    const uint4 words = from[at];
    sum |= words.x | words.y | words.z | words.w;
  }
  // What is read is zero: the condition keeps the loads from being left out.
  if (sum != 0) *sink = sum;
}

// Four loads before the stores, so that enough bytes are in flight.
__global__ void copy(const uint4* __restrict__ from, uint4* __restrict__ to, std::size_t count) {
  const std::size_t step = stride();
  std::size_t at = first();
  for (; at + 3 * step < count; at += 4 * step) {
    const uint4 a = from[at], b = from[at + step], c = from[at + 2 * step], d = from[at + 3 * step];
    to[at] = a;
    to[at + step] = b;
    to[at + 2 * step] = c;
    to[at + 3 * step] = d;
  }
  for (; at < count; at += step) to[at] = from[at];
}

union Eight {
  uint4 raw;
  __nv_bfloat162 pairs[4];
};

__device__ float silu(float x) { return x / (1.0F + __expf(-x)); }

__global__ void silu_mul(const uint4* __restrict__ a, const uint4* __restrict__ b,
                         uint4* __restrict__ out, std::size_t count) {
  for (std::size_t at = first(); at < count; at += stride()) {
    Eight gate{a[at]}, up{b[at]}, result;
    for (int pair = 0; pair < 4; ++pair) {
      const float2 g = __bfloat1622float2(gate.pairs[pair]);
      const float2 u = __bfloat1622float2(up.pairs[pair]);
      result.pairs[pair] = __floats2bfloat162_rn(silu(g.x) * u.x, silu(g.y) * u.y);
    }
    out[at] = result.raw;
  }
}

// One block per row, the row in registers: at most 8 pieces of 16 bytes per thread.
constexpr int row_pieces = 8;
__global__ void rms_norm(const uint4* __restrict__ in, uint4* __restrict__ out, int pieces) {
  Eight held[row_pieces];
  float sum = 0;
  const std::size_t row = blockIdx.x * static_cast<std::size_t>(pieces);
#pragma unroll
  for (int piece = 0; piece < row_pieces; ++piece) {
    const int at = threadIdx.x + piece * threads;
    if (at >= pieces) break;
    held[piece].raw = in[row + at];
    for (int pair = 0; pair < 4; ++pair) {
      const float2 x = __bfloat1622float2(held[piece].pairs[pair]);
      sum += x.x * x.x + x.y * x.y;
    }
  }
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, offset);
  __shared__ float parts[threads / 32];
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  float total = 0;
  for (const float part : parts) total += part;
  const float scale = rsqrtf(total / (8.0F * static_cast<float>(pieces)) + rms_epsilon);
#pragma unroll
  for (int piece = 0; piece < row_pieces; ++piece) {
    const int at = threadIdx.x + piece * threads;
    if (at >= pieces) break;
    for (int pair = 0; pair < 4; ++pair) {
      const float2 x = __bfloat1622float2(held[piece].pairs[pair]);
      held[piece].pairs[pair] = __floats2bfloat162_rn(x.x * scale, x.y * scale);
    }
    out[row + at] = held[piece].raw;
  }
}

unsigned blocks_for(std::size_t count) {
  // Enough blocks for every SM of any device, few enough that each does several rounds.
  return static_cast<unsigned>(std::clamp<std::size_t>((count + threads - 1) / threads, 1, 2112));
}

}  // namespace

void launch_hold(const volatile std::uint32_t* flag, std::uint32_t ticket,
                 std::uint64_t patience_ns, volatile std::uint32_t* expired, Stream stream) {
  hold<<<1, 1, 0, stream>>>(flag, ticket, patience_ns, expired);
  MOESIM_CUDA(cudaGetLastError());
}

void launch_clocks(SmClock* out, int sms, Stream stream) {
  // As wide as a block may be: no SM takes a third one, so that they spread over all.
  clocks<<<static_cast<unsigned>(2 * sms), 1024, 0, stream>>>(out);
  MOESIM_CUDA(cudaGetLastError());
}

void launch_random_bf16(std::uint16_t* out, std::size_t count, std::uint64_t seed, float scale,
                        Stream stream) {
  random_bf16<<<blocks_for(count), threads, 0, stream>>>(reinterpret_cast<__nv_bfloat16*>(out),
                                                         count, seed, scale);
  MOESIM_CUDA(cudaGetLastError());
}

void launch_random_floats(float* out, std::size_t count, std::uint64_t seed, Stream stream) {
  random_floats<<<blocks_for(count), threads, 0, stream>>>(out, count, seed);
  MOESIM_CUDA(cudaGetLastError());
}

void launch_random_e4m3(std::uint8_t* out, std::size_t count, std::uint64_t seed, Stream stream) {
  random_e4m3<<<blocks_for(count), threads, 0, stream>>>(out, count, seed);
  MOESIM_CUDA(cudaGetLastError());
}

void launch_random_scales(float* out, std::size_t count, std::uint64_t seed, Stream stream) {
  random_scales<<<blocks_for(count), threads, 0, stream>>>(out, count, seed);
  MOESIM_CUDA(cudaGetLastError());
}

void launch_empty(Stream stream) {
  empty<<<1, 1, 0, stream>>>();
  MOESIM_CUDA(cudaGetLastError());
}

void launch_pattern(std::uint32_t* out, std::size_t words, std::uint32_t rank, std::uint32_t salt,
                    Stream stream) {
  pattern<<<blocks_for(words), threads, 0, stream>>>(out, words, rank, salt);
  MOESIM_CUDA(cudaGetLastError());
}

void launch_compare_pattern(const std::uint32_t* in, std::size_t words, std::uint32_t rank,
                            std::uint32_t salt, unsigned long long* wrong, Stream stream) {
  compare<<<blocks_for(words), threads, 0, stream>>>(in, words, rank, salt, wrong);
  MOESIM_CUDA(cudaGetLastError());
}

void launch_gather(const std::uint16_t* from, std::uint16_t* to, std::size_t count,
                   std::size_t stride, Stream stream) {
  gather<<<blocks_for(count), threads, 0, stream>>>(from, to, count, stride);
  MOESIM_CUDA(cudaGetLastError());
}

void launch_read(const void* from, std::size_t bytes, std::uint32_t* sink, Stream stream) {
  const std::size_t count = bytes / sizeof(uint4);
  read<<<blocks_for(count), threads, 0, stream>>>(static_cast<const uint4*>(from), count, sink);
  MOESIM_CUDA(cudaGetLastError());
}

void launch_copy(const void* from, void* to, std::size_t bytes, Stream stream) {
  const std::size_t count = bytes / sizeof(uint4);
  copy<<<blocks_for((count + 3) / 4), threads, 0, stream>>>(static_cast<const uint4*>(from),
                                                            static_cast<uint4*>(to), count);
  MOESIM_CUDA(cudaGetLastError());
}

void launch_silu_mul(const std::uint16_t* a, const std::uint16_t* b, std::uint16_t* out,
                     std::size_t count, Stream stream) {
  silu_mul<<<blocks_for(count / 8), threads, 0, stream>>>(reinterpret_cast<const uint4*>(a),
                                                          reinterpret_cast<const uint4*>(b),
                                                          reinterpret_cast<uint4*>(out), count / 8);
  MOESIM_CUDA(cudaGetLastError());
}

void launch_rms_norm(const std::uint16_t* in, std::uint16_t* out, int rows, int columns,
                     Stream stream) {
  static_assert(threads * row_pieces * 8 == 16384);
  rms_norm<<<static_cast<unsigned>(rows), threads, 0, stream>>>(
      reinterpret_cast<const uint4*>(in), reinterpret_cast<uint4*>(out), columns / 8);
  MOESIM_CUDA(cudaGetLastError());
}

}  // namespace moesim::kernels::measure::cuda
