#include "sim/profile/batched_products.hpp"

#include <algorithm>
#include <cmath>

#include "sim/base/units.hpp"
#include "sim/profile/scaled_estimate.hpp"

namespace moesim::profile {
namespace {

// The relative error of the law: no measured FFN is farther off (batched_products.hpp).
constexpr double law_error = 0.15;

// Longer products than the sweeps have take as long as that many of this length.
constexpr std::int64_t longest = 65536;

Estimate by_law(Estimate estimate) {
  const double time_us = estimate.time_us, law_us = law_error * time_us;
  estimate.time_us_p05 = time_us - std::hypot(time_us - estimate.time_us_p05, law_us);
  estimate.time_us_p95 = time_us + std::hypot(estimate.time_us_p95 - time_us, law_us);
  estimate.origin = std::max(estimate.origin, Origin::derived);
  return estimate;
}

// No more experts have rows than there are rows. At most: several rows may be of one expert.
std::int64_t busy_experts(const BatchedProduct& product) {
  return std::min(product.experts, product.rows);
}

// A product whose first dimension may be longer than the sweeps'.
Estimate long_product(const Profile& profile, std::int64_t m, std::int64_t n, std::int64_t k) {
  if (m <= longest) return profile.gemm(m, n, k);
  return scaled(profile.gemm(longest, n, k), static_cast<double>(m) / longest);
}

}  // namespace

Estimate batched_product(const Profile& profile, const BatchedProduct& product) {
  if (product.experts == 1) return profile.gemm(product.rows, product.n, product.k);
  const Estimate dense = long_product(profile, product.rows, product.n, product.k);
  const double weights = static_cast<double>(busy_experts(product)) *
                         static_cast<double>(product.n) * static_cast<double>(product.k);
  const Estimate reading = profile.memory(bf16_bytes * weights);
  return by_law(reading.time_us > dense.time_us ? reading : dense);
}

// The [n, k] gradient or its transpose, whichever fits: the measured sweeps have larger n than m.
Estimate batched_weight_gradient(const Profile& profile, const BatchedProduct& product) {
  const auto [less, more] = std::minmax(product.n, product.k);
  if (product.experts == 1) return profile.gemm(less, more, product.rows);
  const std::int64_t experts = busy_experts(product);
  const std::int64_t depth = (product.rows + experts - 1) / experts;
  return by_law(long_product(profile, experts * less, more, depth));
}

}  // namespace moesim::profile
