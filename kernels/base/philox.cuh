#pragma once

#include "kernels/base/device.cuh"

namespace moesim::kernels {

// Philox 4x32-10 (Salmon et al. 2011), as sim/base/random.hpp has it; a test compares the two.
struct PhiloxKey {
  std::uint32_t key[2] = {0, 0};
  std::uint32_t counter[2] = {0, 0};  // its upper words; the lower two are the block's index
};

struct PhiloxWords4 {
  std::uint32_t word[4];
};

MOESIM_HOST_DEVICE inline PhiloxWords4 philox(const PhiloxKey& stream, std::uint64_t index) {
  std::uint32_t c0 = static_cast<std::uint32_t>(index);
  std::uint32_t c1 = static_cast<std::uint32_t>(index >> 32);
  std::uint32_t c2 = stream.counter[0];
  std::uint32_t c3 = stream.counter[1];
  std::uint32_t k0 = stream.key[0];
  std::uint32_t k1 = stream.key[1];
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first = std::uint64_t{0xD2511F53U} * c0;
    const std::uint64_t second = std::uint64_t{0xCD9E8D57U} * c2;
    c0 = static_cast<std::uint32_t>(second >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(second);
    c2 = static_cast<std::uint32_t>(first >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(first);
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return {{c0, c1, c2, c3}};
}

}  // namespace moesim::kernels
