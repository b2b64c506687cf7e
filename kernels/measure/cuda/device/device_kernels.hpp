#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

// Small kernels of the measuring itself, and the memory-bound ones that a profile prices. Pointers
// are the device's; nothing waits; each throws CudaError when a launch is refused.
namespace moesim::kernels::measure::cuda {

using Stream = CUstream_st*;

// Holds the stream until *flag is at least `ticket`: what is queued behind then runs without gaps
// of the host. After `patience_ns` it frees itself, and writes the ticket to *expired. Both words
// are mapped host memory.
void launch_hold(const volatile std::uint32_t* flag, std::uint32_t ticket,
                 std::uint64_t patience_ns, volatile std::uint32_t* expired, Stream stream);

// One SM's clock counter and the wall clock, by SM number: two of them tell each SM's frequency.
struct SmClock {
  std::uint64_t cycles;
  std::uint64_t nanoseconds;
};
// `out` [most_sms], entries of SMs that ran no block stay as they were.
constexpr int most_sms = 512;
void launch_clocks(SmClock* out, int sms, Stream stream);

// bf16 in (-scale, scale), never zeros: a counter-based hash of (seed, index).
void launch_random_bf16(std::uint16_t* out, std::size_t count, std::uint64_t seed, float scale,
                        Stream stream);
// e4m3 in (-256, 256), and scales in (1 / 512, 1 / 128) for them.
void launch_random_e4m3(std::uint8_t* out, std::size_t count, std::uint64_t seed, Stream stream);
void launch_random_scales(float* out, std::size_t count, std::uint64_t seed, Stream stream);
void launch_random_floats(float* out, std::size_t count, std::uint64_t seed, Stream stream);
// Does nothing, in one thread.
void launch_empty(Stream stream);
// Words that name their rank and offset.
inline std::uint32_t pattern_word(std::uint32_t rank, std::uint32_t salt, std::size_t at) {
  return rank << 24U | ((static_cast<std::uint32_t>(at) + salt) & 0xffffffU);
}
void launch_pattern(std::uint32_t* out, std::size_t words, std::uint32_t rank, std::uint32_t salt,
                    Stream stream);
// Adds to *wrong the number of words that differ from launch_pattern's.
void launch_compare_pattern(const std::uint32_t* in, std::size_t words, std::uint32_t rank,
                            std::uint32_t salt, unsigned long long* wrong, Stream stream);

// to[i] = from[i * stride], 16-bit elements.
void launch_gather(const std::uint16_t* from, std::uint16_t* to, std::size_t count,
                   std::size_t stride, Stream stream);

// Reads `bytes` (a multiple of 16), all of them zero, and keeps nothing of them; `sink` is one
// word.
void launch_read(const void* from, std::size_t bytes, std::uint32_t* sink, Stream stream);

// 16-byte copies; `bytes` a multiple of 16.
void launch_copy(const void* from, void* to, std::size_t bytes, Stream stream);
// out = silu(a) b, bf16; `count` a multiple of 8.
void launch_silu_mul(const std::uint16_t* a, const std::uint16_t* b, std::uint16_t* out,
                     std::size_t count, Stream stream);
// RMSNorm of each row, bf16, gain 1; `columns` a multiple of 8, at most 16,384.
void launch_rms_norm(const std::uint16_t* in, std::uint16_t* out, int rows, int columns,
                     Stream stream);
constexpr float rms_epsilon = 1e-5F;

}  // namespace moesim::kernels::measure::cuda
