#pragma once

#include <string>
#include <vector>

#include "kernels/measure/points/point.hpp"

// The benchmarks of this project's kernels: what is timed, and what each has to reach.
namespace moesim::kernels::measure {

// What a benchmark has to reach.
enum class BarKind {
  none,
  microseconds,      // at most this many
  times_byte_floor,  // at most this many times its bytes at the device's peak bandwidth
  share_of_copy,     // at least this share of the bandwidth of a device copy in the same run
};
struct Bar {
  BarKind kind = BarKind::none;
  double value = 0;
};

struct Benchmark {
  std::string id;  // "assign-token-max"; what peers name it by
  PointSpec spec;  // its bytes: those that have to move
  Bar bar;
  std::string peer_of;  // id of a later benchmark that is to be faster than this one; "": none
};

// S = 16,384 tokens, 4,096 where an id ends in h7168, 8,192 of route-top8-e256; the device copy,
// which others are compared with, first.
const std::vector<Benchmark>& kernel_benchmarks();
// Benchmark::id of the device copy.
constexpr const char* device_copy_id = "device-copy";

// This project's own kernels at 200 tokens, none of cuBLAS: what a sanitizer, which slows kernels a
// hundredfold, can watch. 200 is no multiple of a block, a warp or a tile.
std::vector<PointSpec> sanitizer_points();

}  // namespace moesim::kernels::measure
