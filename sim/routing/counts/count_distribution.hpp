#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/base/simd.hpp"
#include "sim/routing/counts/edge_counts.hpp"
#include "sim/routing/tokens/tile_kernels.hpp"

namespace moesim::routing {

// How many of `tokens` independent tokens choose each expert, with `per_token` different experts
// per token: the counts of one GPU. Marginals are binomial; the correlation is that of fixed-size
// sampling without replacement, cov = -d_e d_f / sum d with d such that the variances are s (1 - s)
// (Hajek 1964; exact for per_token = 1 and for equal experts), modelled by a Gaussian copula. Every
// draw sums to tokens * per_token.
class CountDistribution {
 public:
  // `shares[e]` = P(a token has e), summing to `per_token`.
  CountDistribution(std::span<const double> shares, std::int64_t tokens, int per_token,
                    SimdLevel level = best_simd_level());

  // The counts of 16 GPUs from independent standard normals z [expert][16]. On return, z has the
  // normal of which each count is the quantile. `counts[gpu * experts + expert]` for `gpus` <= 16
  // GPUs.
  void draw(float* z, int gpus, std::int32_t* counts) const;

 private:
  void correlate(std::span<const double> variance);
  void add_marginal(double share);
  void add_edges(double share, double mean, double deviation);
  void restore_total(const float* z, std::int32_t (*counts)[tile_tokens]) const;

  // One expert's quantile function. For a large variance: the Cornish-Fisher expansion of count
  // plus uniform noise, rounded to the count; otherwise the normals at which the count increases by
  // one.
  struct Marginal {
    float slope = 0, scale = 1;  // of the copula: w = (z - slope T) scale, T = sum root z
    float root = 0;              // sqrt(d)
    float c0 = 0, c1 = 0, c2 = 0, c3 = 0;
    std::int32_t first = 0;  // the count below the first edge
    std::uint32_t edge_begin = 0, edge_end = 0;
  };
  std::int64_t tokens_;
  int per_token_;
  const EdgeCountKernels* kernels_;
  std::vector<Marginal> experts_;
  std::vector<float> edges_;
  std::vector<std::uint32_t> adjustable_;  // experts that absorb the rounding error of the total
};

// The `z`-quantile, z a standard normal, of Binomial(trials, share).
std::int32_t binomial_quantile(std::int32_t trials, double share, double z);
// The same to the bit, of one share: what depends on the number of trials alone is computed once.
class BinomialQuantiles {
 public:
  explicit BinomialQuantiles(double share);
  std::int32_t at(std::int32_t trials, double z);

 private:
  double share_;
  double log_miss_;           // log(1 - the lesser one of share and 1 - share)
  std::vector<double> none_;  // [trials]: P(count = 0) of that one; below 0: not known yet
};
// The same for the number of marked items among `drawn` of `all` items, `marked` of which are
// marked.
std::int64_t hypergeometric_quantile(std::int64_t all, std::int64_t marked, std::int64_t drawn,
                                     double z);
// The same also where few are expected: `log_factorials[n]` = log(n!) up to `all`.
std::int64_t hypergeometric_quantile(std::int64_t all, std::int64_t marked, std::int64_t drawn,
                                     double z, std::span<const double> log_factorials);

// Whether that count is below `limit`, mostly without its square roots: as far from its mean as the
// normal variable z does not take it, it is plain.
bool hypergeometric_is_below(std::int64_t limit, std::int64_t all, std::int64_t marked,
                             std::int64_t drawn, double z, std::span<const double> log_factorials);

}  // namespace moesim::routing
