#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/formats/document.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/profile/estimate.hpp"
#include "sim/profile/kernels/attention_shape.hpp"
#include "sim/profile/kernels/curve_document.hpp"
#include "sim/profile/residual.hpp"

namespace moesim::profile {

// A sequence too far beyond the longest one that was measured.
class SequenceTooLong : public NotMeasured {
 public:
  using NotMeasured::NotMeasured;
};

// The time of fused causal attention (FlashAttention tiles) for one head size. Physics: query
// tiles of all heads spread over the SMs, each walking the key tiles up to its diagonal (Dao,
// FlashAttention-2, 2023, arXiv:2307.08691), the longest tile as a floor; the query heads of a
// group packed into one tile where the kernel does so (FlashAttention-3); reads and writes at the
// memory bandwidth, the write of keys and values to the cache, a launch floor; then small smooth
// corrections in log time.
class AttentionCurve {
 public:
  // Reads a curve of model "flash-tiles"; errors name file and key.
  explicit AttentionCurve(const Node& node);

  std::int64_t head_dim() const { return head_dim_; }
  const Residual& residual() const { return residual_; }

  // Throws UsageError for sizes below 1 or heads that are no multiple of kv_heads, Error for a
  // sequence or heads more than 16 times beyond what was measured. Nearer, and of any batch, tile
  // count carries (extrapolated). The backward pass is 2.5 times the forward, five matrix products
  // against two, marked assumed.
  Estimate estimate(const AttentionShape& shape, bool backward) const;

 private:
  // The variables a correction term may name, in log2.
  enum Variable { sequence, tile_heads, group, kv_heads, footprint, variable_count };
  // How the query rows of a shape are cut into tiles.
  struct Tiling {
    double groups;       // sets of query rows that share tiles
    double query_tiles;  // of one group
    double key_tiles;    // of a whole sequence
  };
  static bool read_packs_always(const Node& node);
  Tiling tiling(const AttentionShape& shape) const;
  // Leaves the part of the shape that one launch is asked for; how many of them there are.
  double cut(AttentionShape& shape) const;
  double physics_us(const AttentionShape& shape) const;
  std::array<double, variable_count> variables(const AttentionShape& shape) const;

  std::int64_t head_dim_;
  double sms_;
  double l2_bytes_;
  double tile_rows_;
  double tile_keys_;
  bool packs_always_;
  double launch_us_;
  double tile_us_;
  double block_us_;
  double bytes_per_us_;
  double floor_power_;
  double overlap_power_;
  double single_token_copy_us_;
  std::vector<double> cache_log2_kv_heads_;
  std::vector<double> cache_log_us_per_token_;
  std::vector<CorrectionTerm> terms_;
  double longest_;
  double most_batch_heads_;
  Origin origin_;
  Residual residual_;
};

}  // namespace moesim::profile
