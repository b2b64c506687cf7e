#include "sim/profile/unfused_ffn.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/base/units.hpp"
#include "sim/profile/batched_products.hpp"
#include "sim/profile/scaled_estimate.hpp"

namespace moesim::profile {
namespace {

struct Sum {
  double time_us = 0, below_us = 0, above_us = 0;

  void add(const Estimate& estimate, double count) {
    time_us += count * estimate.time_us;
    below_us += count * (estimate.time_us - estimate.time_us_p05);
    above_us += count * (estimate.time_us_p95 - estimate.time_us);
  }
};

// The activation reads the gate and up halves and writes their product.
Estimate activation(const Profile& profile, std::int64_t rows, std::int64_t ffn) {
  return scaled(
      profile.memory(3 * bf16_bytes * static_cast<double>(rows * ffn), MemoryKernel::activation),
      profile.software_multiplier("memory"));
}

Estimate product(const Profile& profile, std::int64_t m, std::int64_t n, std::int64_t k) {
  return scaled(profile.gemm(m, n, k), profile.software_multiplier("gemm"));
}

Estimate batched(const Profile& profile, const BatchedProduct& shape) {
  return scaled(batched_product(profile, shape), profile.software_multiplier("gemm"));
}

// Products, activation, products: kernels of one kind err together, those of different kinds
// independently.
class FfnSum {
 public:
  void add(const std::array<Estimate, 3>& kernels, double count) {
    for (std::size_t kind = 0; kind < kernels.size(); ++kind) {
      kinds_[kind].add(kernels[kind], count);
      all_.origin = std::max(all_.origin, kernels[kind].origin);
      all_.support = std::max(all_.support, kernels[kind].support);
    }
  }
  Estimate take() {
    double below = 0, above = 0;
    for (const Sum& sum : kinds_) {
      all_.time_us += sum.time_us;
      below += sum.below_us * sum.below_us;
      above += sum.above_us * sum.above_us;
    }
    all_.time_us_p05 = all_.time_us - std::sqrt(below);
    all_.time_us_p95 = all_.time_us + std::sqrt(above);
    return all_;
  }

 private:
  std::array<Sum, 3> kinds_;
  Estimate all_{0, 0, 0, Origin::measured, Support::measured_point};
};

std::map<std::int64_t, double> experts_by_rows(std::span<const std::int64_t> rows_per_expert) {
  std::map<std::int64_t, double> experts;
  for (const std::int64_t rows : rows_per_expert) {
    if (rows < 0) throw UsageError("expert-ffn: negative rows");
    if (rows > 0) ++experts[rows];
  }
  if (experts.empty()) throw NoAnswer("expert-ffn: no expert has a row: nothing runs");
  return experts;
}

}  // namespace

Estimate separate_expert_ffn(const Profile& profile, std::span<const std::int64_t> rows_per_expert,
                             std::int64_t hidden, std::int64_t ffn) {
  FfnSum sum;
  for (const auto& [rows, count] : experts_by_rows(rows_per_expert)) {
    sum.add({product(profile, rows, 2 * ffn, hidden), activation(profile, rows, ffn),
             product(profile, rows, hidden, ffn)},
            count);
  }
  return sum.take();
}

Estimate batched_expert_ffn(const Profile& profile, std::span<const std::int64_t> rows_per_expert,
                            std::int64_t hidden, std::int64_t ffn) {
  std::int64_t rows = 0, experts = 0;
  for (const auto& [of_each, count] : experts_by_rows(rows_per_expert)) {
    experts += static_cast<std::int64_t>(count);
    rows += of_each * static_cast<std::int64_t>(count);
  }
  FfnSum sum;
  sum.add({batched(profile, {rows, 2 * ffn, hidden, experts}), activation(profile, rows, ffn),
           batched(profile, {rows, hidden, ffn, experts})},
          1);
  return sum.take();
}

}  // namespace moesim::profile
