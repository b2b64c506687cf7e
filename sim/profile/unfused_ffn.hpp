#pragma once

#include <cstdint>
#include <span>

#include "sim/profile/estimate.hpp"
#include "sim/profile/profile.hpp"

namespace moesim::profile {

// The SwiGLU FFNs of a GPU's local experts, forward, as a training step without fused kernels runs
// them and sim/step prices them (KernelPricer::expert_rows): for each expert with rows a product
// [rows, hidden] x [hidden, 2 ffn], the activation, a product [rows, ffn] x [ffn, hidden]. Kernels
// of one kind err together, those of different kinds independently. Of a profile with multipliers
// of a software products and activation have theirs. Throws UsageError for no row at all, Error as
// Profile::gemm() and memory().
Estimate separate_expert_ffn(const Profile& profile, std::span<const std::int64_t> rows_per_expert,
                             std::int64_t hidden, std::int64_t ffn);

// The same with both products of all experts in a call each (batched_products.hpp), and one
// activation; experts without rows have their weights read too.
Estimate batched_expert_ffn(const Profile& profile, std::span<const std::int64_t> rows_per_expert,
                            std::int64_t hidden, std::int64_t ffn);

}  // namespace moesim::profile
