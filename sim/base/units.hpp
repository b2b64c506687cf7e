#pragma once

#include <compare>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace moesim {

// Bytes of an element.
inline constexpr double bf16_bytes = 2;
inline constexpr double fp32_bytes = 4;

inline constexpr double bytes_per_mib = 1024.0 * 1024;
inline constexpr double bytes_per_gib = 1024.0 * bytes_per_mib;

// Throw Error: what 63 bits do not hold.
[[noreturn]] void throw_time_too_long();
[[noreturn]] void throw_too_many_bytes();

// Simulated time and durations: whole picoseconds, so that sums do not depend on their order and
// the same inputs give the same bits. 2^63 ps are 106 days: sums and differences beyond that throw
// Error, which keeps a run of many operations from wrapping around.
struct Picoseconds {
  std::int64_t count = 0;

  constexpr Picoseconds() = default;
  constexpr explicit Picoseconds(std::int64_t value) : count(value) {}
  explicit Picoseconds(std::floating_point auto value) = delete;  // from_us() and rounded() check
  // Rounds to the nearest picosecond. Throws Error for a duration that is negative or no number, or
  // beyond 106 days.
  static Picoseconds from_us(double microseconds);
  // The same of picoseconds, of either sign: times and differences of times.
  static Picoseconds rounded(double picoseconds);
  constexpr double us() const { return static_cast<double>(count) * 1e-6; }
  constexpr double ms() const { return static_cast<double>(count) * 1e-9; }
  constexpr double seconds() const { return static_cast<double>(count) * 1e-12; }

  constexpr auto operator<=>(const Picoseconds&) const = default;
  constexpr Picoseconds& operator+=(Picoseconds other) {
    if (__builtin_add_overflow(count, other.count, &count)) throw_time_too_long();
    return *this;
  }
  constexpr Picoseconds& operator-=(Picoseconds other) {
    if (__builtin_sub_overflow(count, other.count, &count)) throw_time_too_long();
    return *this;
  }
  friend constexpr Picoseconds operator+(Picoseconds a, Picoseconds b) { return a += b; }
  friend constexpr Picoseconds operator-(Picoseconds a, Picoseconds b) { return a -= b; }
};

// An amount of data, in bytes. Sums and products beyond 2^63 bytes throw Error.
struct Bytes {
  std::int64_t count = 0;

  constexpr Bytes() = default;
  constexpr explicit Bytes(std::int64_t value) : count(value) {}
  explicit Bytes(std::floating_point auto value) = delete;  // rounded() checks
  // Rounds to the nearest byte. Throws Error for an amount that is negative or no number, or beyond
  // 2^63 bytes.
  static Bytes rounded(double bytes);
  constexpr double gib() const { return static_cast<double>(count) / bytes_per_gib; }

  constexpr auto operator<=>(const Bytes&) const = default;
  constexpr Bytes& operator+=(Bytes other) {
    if (__builtin_add_overflow(count, other.count, &count)) throw_too_many_bytes();
    return *this;
  }
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return a += b; }
  friend constexpr Bytes operator*(Bytes a, std::int64_t n) {
    if (__builtin_mul_overflow(a.count, n, &a.count)) throw_too_many_bytes();
    return a;
  }
};

// A data rate, bytes per second (decimal GB/s in documents and output, as nccl-tests prints).
struct Bandwidth {
  double bytes_per_second = 0;

  constexpr Bandwidth() = default;
  constexpr explicit Bandwidth(double value) : bytes_per_second(value) {}
  static constexpr Bandwidth gigabytes(double gb_per_s) { return Bandwidth(gb_per_s * 1e9); }
  constexpr double gb_per_s() const { return bytes_per_second * 1e-9; }
  constexpr auto operator<=>(const Bandwidth&) const = default;
};

// "64MiB", "1GB", "1e6", "4096B": a positive whole number of bytes. Throws UsageError naming
// `what` (a flag or key) and the accepted suffixes.
Bytes parse_bytes(std::string_view text, const std::string& what);

}  // namespace moesim
