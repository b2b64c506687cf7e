#pragma once

#include <cstddef>
#include <cstdint>

#include "sim/base/simd.hpp"

namespace moesim::network {

// The inner loops of DenseFlows. Sets of links are bits in words of 64; `words` counts them, and
// arrays by link have 64 entries per word.
struct DenseKernels {
  struct Least {
    double value = 0;
    std::size_t place = 0;  // the first of equals
  };
  // rho -= change and eta -= eta_change over a set.
  void (*push)(const std::uint64_t* set, double change, double eta_change, double* rho, double* eta,
               std::size_t words);
  // result = the links of `set` whose level is `limit` or more.
  void (*at_least)(const std::uint64_t* set, const double* level, double limit,
                   std::uint64_t* result, std::size_t words);
  Least (*least)(const double* values, std::size_t words);
  // Lists the links with |rho time - eta| > limit * held * level where held > 0, or rho < overfull
  // where held = 0; returns how many. `found` has room for one more than there are links.
  std::size_t (*exceeding)(const double* rho, const double* eta, const double* level,
                           const std::uint32_t* held, double time, double limit, double overfull,
                           std::size_t words, std::uint32_t* found);
};

// One implementation per instruction set; all give the same bits.
const DenseKernels& dense_kernels(SimdLevel level = best_simd_level());

}  // namespace moesim::network
