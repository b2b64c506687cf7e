#include "sim/profile/separate_ffn.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"

namespace moesim::profile {
namespace {

constexpr double element = 2;  // bytes of bf16

struct Sum {
  double time_us = 0, below_us = 0, above_us = 0;

  void add(const Estimate& estimate, double count) {
    time_us += count * estimate.time_us;
    below_us += count * (estimate.time_us - estimate.time_us_p05);
    above_us += count * (estimate.time_us_p95 - estimate.time_us);
  }
};

}  // namespace

Estimate separate_expert_ffn(const Profile& profile, std::span<const std::int64_t> rows_per_expert,
                             std::int64_t hidden, std::int64_t ffn) {
  std::map<std::int64_t, double> experts;  // by rows
  for (const std::int64_t rows : rows_per_expert) {
    if (rows < 0) throw UsageError("expert-ffn: negative rows");
    if (rows > 0) ++experts[rows];
  }
  if (experts.empty()) throw NoAnswer("expert-ffn: no expert has a row: nothing runs");
  std::array<Sum, 3> kinds;
  Estimate all{0, 0, 0, Origin::measured, Support::measured_point};
  for (const auto& [rows, count] : experts) {
    const double cells = element * static_cast<double>(rows * ffn);
    // The activation reads the gate and up halves and writes their product.
    const std::array<Estimate, 3> kernels{profile.gemm(rows, 2 * ffn, hidden),
                                          profile.memory(3 * cells, MemoryKernel::activation),
                                          profile.gemm(rows, hidden, ffn)};
    for (std::size_t kind = 0; kind < kernels.size(); ++kind) {
      kinds[kind].add(kernels[kind], count);
      all.origin = std::max(all.origin, kernels[kind].origin);
      all.support = std::max(all.support, kernels[kind].support);
    }
  }
  double below = 0, above = 0;
  for (const Sum& sum : kinds) {
    all.time_us += sum.time_us;
    below += sum.below_us * sum.below_us;
    above += sum.above_us * sum.above_us;
  }
  all.time_us_p05 = all.time_us - std::sqrt(below);
  all.time_us_p95 = all.time_us + std::sqrt(above);
  return all;
}

}  // namespace moesim::profile
