#pragma once

#include <cstddef>

namespace moesim::kernels {

// Bytes up to the next buffer of the same allocation: a multiple of 256, as cudaMalloc aligns.
constexpr std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace moesim::kernels
