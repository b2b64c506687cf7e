#pragma once

#include <cstddef>
#include <cstdint>

#include "sim/base/simd.hpp"

namespace moesim::network {

// The links of RefilledFlows as its kernels see them, and how far their levels are known. Each side
// has 64 `words` places; the second links are those from there on.
struct RefillLinks {
  std::size_t words;
  const double* capacity;        // [link] bytes per picosecond
  const double* reciprocal;      // [count] 1 / count, NaN for 0
  const std::uint64_t* alive;    // [link, words] its flows
  double* level;                 // [link] bytes per picosecond
  std::uint32_t* held;           // [link] its flows to links later in the order
  std::uint32_t *order, *where;  // links that have flows, by their levels; [link] its place there
  std::size_t count, full;       // in the order, and how many of them are full: those come first
  // What filling found; the first entries are given.
  std::uint32_t* firsts;  // [position] first links before it
  double* highest;        // [side, links of the side before] their highest level
  double* left;           // [side, links of the other side before, place] bytes per picosecond
};

// Flows that may end soon, in no order; arrays have room up to a multiple of 8.
struct SoonFlows {
  const std::uint32_t *first, *second;  // links
  double *bytes, *rate;                 // to send, infinite behind the last; per picosecond
  double* wait;                         // picoseconds to their ends, written by soonest()
  std::size_t count;
};

// The inner loops of RefilledFlows.
struct RefillKernels {
  struct Filled {
    std::int64_t levels = 0;  // found
    std::int64_t moves = 0;   // of flows to another of their links
  };
  struct Soonest {
    double wait = 0;  // picoseconds; infinite if there is none
    std::size_t place = 0;
  };
  struct Listed {
    std::size_t count = 0;
    double least = 0;  // time that any flow needs; infinite if there is none
  };
  // Bytes of a flow served per link and record: [link / 8, record, link % 8].
  static constexpr std::size_t most_records = 16;

  // Finds the levels of the order from a position on, of which those before are right, and puts it
  // in order.
  Filled (*fill)(RefillLinks& links, std::size_t from);
  // A record of levels that hold for a time; returns the most by which one has grown, given the
  // inverses of former levels. `links` is a multiple of 8, also below.
  double (*record)(const double* level, const double* inverse, double time, std::size_t links,
                   double* record);
  // Takes what flows were sent in records off `bytes` [first, second], infinite where there is no
  // flow, and lists those that need less than `horizon` at the levels of given inverses, as places
  // in the matrix.
  Listed (*serve)(double* bytes, const double* records, std::size_t count, const double* inverse,
                  double horizon, std::size_t width, std::uint32_t* listed);
  // Takes what flows were sent for a time at their rates, gives them new ones and finds the first
  // to end.
  Soonest (*soonest)(const SoonFlows& flows, const double* level, double time);
};

// One implementation per instruction set; all give the same bits.
const RefillKernels& refill_kernels(SimdLevel level = best_simd_level());

}  // namespace moesim::network
