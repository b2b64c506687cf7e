#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/measure/suites/suite.hpp"

namespace moesim::kernels::measure {

// `bytes`: the whole per-rank buffer.
PointSpec exchange_point(const char* op, const char* pattern, int gpus, std::int64_t bytes);

// Exchanges back to back in one sample. Ranks are released some microseconds apart, as long as a
// small exchange takes: over many calls the sum of that and of the last call's end is shared out.
std::size_t calls_per_sample(std::int64_t bytes);

// The bytes that rank `from` sends to each of `gpus` ranks in the uneven exchange: `bytes` in all
// from each rank, the receivers' shares falling as 1 / (1 + place), where the rank after `from` has
// place 0; multiples of 16, at least 16.
std::vector<std::int64_t> uneven_row(int gpus, int from, std::int64_t bytes);

// The collectives of 2 GPUs and more.
Suite collectives_suite();

// Elements [first, first + count).
struct Slice {
  std::size_t first = 0;
  std::size_t count = 0;
};
// What of a reduction's result of `elements` bf16 is fetched and compared: all of up to 64 MiB; of
// more, 64 slices of 1 MiB, evenly spaced, the first and the last elements among them.
std::vector<Slice> checked_slices(std::size_t elements);

}  // namespace moesim::kernels::measure
