#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "sim/base/simd.hpp"

namespace moesim::network {

// The level of a link that is not full: more than any other, and finite, because it is subtracted.
inline constexpr double slack_level = std::numeric_limits<double>::max();

// The links of DenseFlows as its kernels see them, [link]: both sides have 64 entries per word.
struct DenseLinks {
  const double* capacity;
  double *level, *passed, *since, *end;
  double *rho, *eta;
  const double* least;
  const std::uint32_t* held_count;
  const std::uint64_t *alive, *held;  // [link, words]
  std::size_t words;
};

// When links are looked at, and what may be missing then: see DenseFlows.
struct DenseClock {
  double now, base;
  double next;  // since the base
  double tolerance, overfull;
};

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
  Least (*least)(const double* values, std::size_t words);
  // Lists the links with |rho time - eta| > limit * held * level where held > 0, or rho < overfull
  // where held = 0; returns how many. `found` has room for one more than there are links.
  std::size_t (*exceeding)(const double* rho, const double* eta, const double* level,
                           const std::uint32_t* held, double time, double limit, double overfull,
                           std::size_t words, std::uint32_t* found);
  // The level at which `link` is full, all others being as they are, and in `wanted` the flows it
  // then holds back; slack_level if it is not full without any.
  double (*wanted_level)(const DenseLinks& links, std::size_t link, std::uint64_t* wanted);
  // Fits those links of `order`, from place `from` on, that miss more than is allowed, as long as
  // they hold back the same flows; returns the place of the first for which that is not enough, or
  // `count`. `correction` is raised to the most that a fit made up for.
  std::size_t (*fit)(const DenseLinks& links, const std::uint32_t* order, std::size_t from,
                     std::size_t count, const DenseClock& clock, double& correction);
};

// One implementation per instruction set; all give the same bits.
const DenseKernels& dense_kernels(SimdLevel level = best_simd_level());

}  // namespace moesim::network
