#include "sim/profile/kernels/attention_curve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/base/no_answer.hpp"

namespace moesim::profile {

namespace {

// FlashAttention's backward recomputes the scores: five matrix products where the forward has two
// (Dao 2023, arXiv:2307.08691, section 4).
constexpr double backward_over_forward = 2.5;

// Products of two sizes stay whole numbers of 64 bits.
constexpr std::int64_t largest_size = (std::int64_t{1} << 31) - 1;

void check_shape(const AttentionShape& shape) {
  const std::array<std::pair<const char*, std::int64_t>, 5> sizes = {
      {{"batch", shape.batch},
       {"sequence", shape.sequence},
       {"heads", shape.heads},
       {"kv-heads", shape.kv_heads},
       {"head-dim", shape.head_dim}}};
  for (const auto& [name, value] : sizes) {
    if (value < 1 || value > largest_size) {
      throw NoAnswer(fmt::format("attention: {} {}: expected 1 to {}", name, value, largest_size));
    }
  }
  if (shape.heads % shape.kv_heads != 0) {
    throw NoAnswer(fmt::format("attention: {} heads are no multiple of {} kv-heads", shape.heads,
                               shape.kv_heads));
  }
}

}  // namespace

// Which tokens' query heads share tiles with their group: of all sequences, or of single tokens.
bool AttentionCurve::read_packs_always(const Node& node) {
  const std::string packs = node.text("packs_groups");
  if (packs != "always" && packs != "single-token") {
    node.fail("expected \"always\" or \"single-token\"", "packs_groups");
  }
  return packs == "always";
}

AttentionCurve::AttentionCurve(const Node& node)
    : head_dim_(node.at("params").positive_integer("head_dim")),
      sms_(node.at("physics").positive("sms")),
      l2_bytes_(node.at("physics").positive("l2_bytes")),
      tile_rows_(node.at("physics").positive("tile_rows")),
      tile_keys_(node.at("physics").positive("tile_keys")),
      packs_always_(read_packs_always(node.at("physics"))),
      launch_us_(node.at("physics").positive("launch_us")),
      tile_us_(node.at("physics").positive("tile_us")),
      block_us_(node.at("physics").positive("block_us")),
      bytes_per_us_(node.at("physics").positive("bytes_per_us")),
      floor_power_(node.at("physics").positive("floor_power")),
      overlap_power_(node.at("physics").positive("overlap_power")),
      single_token_copy_us_(node.at("physics").number("single_token_copy_us")),
      cache_log2_kv_heads_(node.at("physics").numbers("cache_log2_kv_heads")),
      cache_log_us_per_token_(node.at("physics").numbers("cache_log_us_per_token")),
      longest_(node.at("valid").numbers("sequence").back()),
      most_batch_heads_(node.at("valid").numbers("batch_heads").back()),
      origin_(read_origin(node, "origin")),
      residual_(node.at("residual")) {
  if (cache_log2_kv_heads_.size() < 2 ||
      cache_log2_kv_heads_.size() != cache_log_us_per_token_.size()) {
    node.at("physics").fail("expected as many values as knots, at least two",
                            "cache_log_us_per_token");
  }
  constexpr std::array<const char*, variable_count> names = {
      "log2_sequence", "log2_tile_heads", "log2_group", "log2_kv_heads", "log2_footprint"};
  for (const Node& item : node.items("corrections")) terms_.push_back(read_term(item, names));
}

AttentionCurve::Tiling AttentionCurve::tiling(const AttentionShape& shape) const {
  const bool packed = packs_always_ || shape.sequence == 1;
  const std::int64_t heads_per_group = shape.heads / shape.kv_heads;
  const std::int64_t rows = packed ? shape.sequence * heads_per_group : shape.sequence;
  const std::int64_t groups = shape.batch * (packed ? shape.kv_heads : shape.heads);
  return {static_cast<double>(groups), std::ceil(static_cast<double>(rows) / tile_rows_),
          std::ceil(static_cast<double>(shape.sequence) / tile_keys_)};
}

double AttentionCurve::physics_us(const AttentionShape& shape) const {
  const Tiling tiles = tiling(shape);
  const auto tokens = static_cast<double>(shape.batch * shape.sequence);
  // Below the diagonal a query tile meets half the key tiles on average, and its own.
  const double average =
      tiles.groups * tiles.query_tiles * (tile_us_ * (tiles.key_tiles + 1) / 2 + block_us_) / sms_;
  const double longest = tile_us_ * tiles.key_tiles + block_us_;
  const double compute = std::pow(std::pow(average, 4) + std::pow(longest, 4), 0.25);
  const auto row_bytes =
      static_cast<double>(2 * shape.head_dim * (2 * shape.heads + 2 * shape.kv_heads));
  const double memory = tokens * row_bytes / bytes_per_us_;
  const double kv = std::log2(static_cast<double>(shape.kv_heads));
  const double cache =
      tokens * std::exp(interpolate(cache_log2_kv_heads_, cache_log_us_per_token_, kv));
  const double core = std::pow(std::pow(compute, overlap_power_) + std::pow(memory, overlap_power_),
                               1 / overlap_power_) +
                      cache;
  const double kernels =
      std::pow(std::pow(launch_us_, floor_power_) + std::pow(core, floor_power_), 1 / floor_power_);
  // Packing a single token's group transposes batch and groups: a copy if neither is 1.
  const bool copies = !packs_always_ && shape.sequence == 1 && shape.heads > shape.kv_heads &&
                      shape.kv_heads > 1 && shape.batch > 1;
  return kernels + (copies ? single_token_copy_us_ : 0);
}

std::array<double, AttentionCurve::variable_count> AttentionCurve::variables(
    const AttentionShape& shape) const {
  const Tiling tiles = tiling(shape);
  const auto length = static_cast<double>(shape.sequence);
  const double values = 2.0 * static_cast<double>(shape.head_dim) *
                        static_cast<double>(shape.batch * shape.sequence) *
                        static_cast<double>(2 * shape.heads + 4 * shape.kv_heads);
  std::array<double, variable_count> result{};
  result[sequence] = std::log2(length);
  result[tile_heads] = std::log2(tiles.groups * tiles.query_tiles / std::ceil(length / tile_rows_));
  const std::int64_t heads_per_group = shape.heads / shape.kv_heads;
  result[group] = std::log2(static_cast<double>(heads_per_group));
  result[kv_heads] = std::log2(static_cast<double>(shape.kv_heads));
  // Queries, keys, values, outputs and the cache written, against the L2.
  result[footprint] = std::log2(values / l2_bytes_);
  return result;
}

// More heads are priced in equal pieces, each its own launch: waves only repeat. A longer sequence
// is not.
double AttentionCurve::cut(AttentionShape& shape) const {
  const double furthest = std::exp2(furthest_octaves);
  if (static_cast<double>(shape.sequence) > furthest * longest_) {
    throw SequenceTooLong(fmt::format(
        "attention over {} tokens: more than {:g} times beyond the longest sequence measured, "
        "{:g}: shorten it, or measure it",
        shape.sequence, furthest, longest_));
  }
  const double most = furthest * most_batch_heads_;
  if (static_cast<double>(shape.heads) > most) {
    throw NotMeasured(
        fmt::format("attention of {} heads: more than {:g} times beyond the most measured, "
                    "{:g}: divide them over GPUs, or measure it",
                    shape.heads, furthest, most_batch_heads_));
  }
  const double whole = static_cast<double>(shape.batch) * static_cast<double>(shape.heads);
  if (whole <= most) return 1;
  shape.batch = static_cast<std::int64_t>(most / static_cast<double>(shape.heads));
  return whole / (static_cast<double>(shape.batch) * static_cast<double>(shape.heads));
}

Estimate AttentionCurve::estimate(const AttentionShape& asked, bool backward) const {
  check_shape(asked);
  AttentionShape shape = asked;
  const double pieces = cut(shape);
  const std::array<double, variable_count> known = variables(shape);
  double correction = 0;
  for (const CorrectionTerm& term : terms_) correction += term.at(known);
  const double forward_us = pieces * physics_us(shape) * std::exp(correction);
  const double octaves =
      std::max(known[sequence] - std::log2(longest_), 0.0) +
      std::max(std::log2(static_cast<double>(shape.batch * shape.heads) / most_batch_heads_), 0.0);
  Estimate estimate;
  // The backward pass is based only on a ratio of FLOPs: its bar is one octave wider.
  const double widen = widening(octaves + (backward ? 1 : 0));
  const double factor = backward ? backward_over_forward : 1;
  residual_.apply(forward_us, forward_us, widen, estimate);
  estimate.time_us *= factor;
  estimate.time_us_p05 *= factor;
  estimate.time_us_p95 *= factor;
  estimate.origin = backward ? Origin::assumed : origin_;
  estimate.support = octaves > 0 ? Support::extrapolated : Support::interpolated;
  return estimate;
}

}  // namespace moesim::profile
