#pragma once

#include <cstddef>
#include <cstdint>

#include "sim/base/simd.hpp"

namespace moesim::network {

// What a stretch of receivers has, one entry each.
struct Columns {
  const std::int64_t* row;  // bytes sent to it
  std::int64_t* bytes;
  double* messages;
  const double* latency;
  const double* per_byte;
  double* earliest;
  double* done;
  double* through;
  double* end;
  std::size_t size;
};

// What a member sends over one of its ports. Messages are counted by the sign of their negative.
struct Sent {
  std::int64_t bytes = 0;
  std::int64_t messages = 0;
};

// The loops in which the fast network spends its time. Amounts are below 2^52.
struct ClockKernels {
  // Messages of the row start at `time`; `enter` where all ways take equally long, so that of the
  // messages so far the one that arrives now is the earliest, `enter_uneven` elsewhere.
  Sent (*enter)(const Columns& columns, double time);
  Sent (*enter_uneven)(const Columns& columns, double time);
  // When each message of the row is through, by its receiver's port and by the sender's, which
  // starts at `start`, is done at `end` and takes `cost` per byte of one message.
  void (*settle)(const Columns& columns, double start, double end, double cost);
};
// One implementation per instruction set; all give the same bits.
const ClockKernels& clock_kernels(SimdLevel level = best_simd_level());

}  // namespace moesim::network
