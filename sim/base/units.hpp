#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace moesim {

// Bytes of an element.
inline constexpr double bf16_bytes = 2;
inline constexpr double fp32_bytes = 4;

inline constexpr double bytes_per_mib = 1024.0 * 1024;
inline constexpr double bytes_per_gib = 1024.0 * bytes_per_mib;

// Simulated time and durations: whole picoseconds, so that sums do not depend on their order and
// the same inputs give the same bits. 2^63 ps are 106 days.
struct Picoseconds {
  std::int64_t count = 0;

  constexpr Picoseconds() = default;
  constexpr explicit Picoseconds(std::int64_t value) : count(value) {}
  // Rounds to the nearest picosecond; negative and non-finite durations are a programmer error.
  // Throws Error for a time beyond 106 days, which 63 bits do not hold.
  static Picoseconds from_us(double microseconds);
  constexpr double us() const { return static_cast<double>(count) * 1e-6; }
  constexpr double ms() const { return static_cast<double>(count) * 1e-9; }
  constexpr double seconds() const { return static_cast<double>(count) * 1e-12; }

  constexpr auto operator<=>(const Picoseconds&) const = default;
  constexpr Picoseconds& operator+=(Picoseconds other) { return count += other.count, *this; }
  constexpr Picoseconds& operator-=(Picoseconds other) { return count -= other.count, *this; }
  friend constexpr Picoseconds operator+(Picoseconds a, Picoseconds b) { return a += b; }
  friend constexpr Picoseconds operator-(Picoseconds a, Picoseconds b) { return a -= b; }
};

// An amount of data, in bytes.
struct Bytes {
  std::int64_t count = 0;

  constexpr Bytes() = default;
  constexpr explicit Bytes(std::int64_t value) : count(value) {}
  constexpr double gib() const { return static_cast<double>(count) / bytes_per_gib; }

  constexpr auto operator<=>(const Bytes&) const = default;
  constexpr Bytes& operator+=(Bytes other) { return count += other.count, *this; }
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return a += b; }
  friend constexpr Bytes operator*(Bytes a, std::int64_t n) { return Bytes(a.count * n); }
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
