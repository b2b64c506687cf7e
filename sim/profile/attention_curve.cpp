#include "sim/profile/attention_curve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/base/error.hpp"
#include "sim/profile/collective_curve.hpp"

namespace moesim::profile {

namespace {

// FlashAttention's backward recomputes the scores: five matrix products where the forward has two
// (Dao 2023, arXiv:2307.08691, section 4).
constexpr double kBackwardOverForward = 2.5;

void check_shape(const AttentionShape& shape) {
  const std::array<std::pair<const char*, std::int64_t>, 5> sizes = {
      {{"batch", shape.batch},
       {"sequence", shape.sequence},
       {"heads", shape.heads},
       {"kv-heads", shape.kv_heads},
       {"head-dim", shape.head_dim}}};
  for (const auto& [name, value] : sizes) {
    if (value < 1) {
      throw UsageError(fmt::format("attention: {} {}: expected at least 1", name, value));
    }
  }
  if (shape.heads % shape.kv_heads != 0) {
    throw UsageError(fmt::format("attention: {} heads are no multiple of {} kv-heads", shape.heads,
                                 shape.kv_heads));
  }
}

}  // namespace

AttentionCurve::Variable AttentionCurve::read_variable(const Node& node, const std::string& name) {
  constexpr std::array<const char*, variable_count> names = {
      "log2_sequence", "log2_batch_heads", "log2_kv_heads", "log2_group", "log2_batch"};
  for (int variable = 0; variable < variable_count; ++variable) {
    if (name == names.at(static_cast<std::size_t>(variable))) return Variable(variable);
  }
  node.fail("unknown variable '" + name + "'");
}

AttentionCurve::AttentionCurve(const Node& node)
    : head_dim_(node.at("params").positive_integer("head_dim")),
      sms_(node.at("physics").positive("sms")),
      tile_rows_(node.at("physics").positive("tile_rows")),
      launch_us_(node.at("physics").positive("launch_us")),
      tile_us_(node.at("physics").positive("tile_us")),
      block_us_(node.at("physics").positive("block_us")),
      bytes_per_us_(node.at("physics").positive("bytes_per_us")),
      floor_power_(node.at("physics").positive("floor_power")),
      overlap_power_(node.at("physics").positive("overlap_power")),
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
  for (const Node& item : node.items("corrections")) {
    LogGrid grid(item);
    const Variable x = read_variable(item, grid.x());
    const Variable y = read_variable(item, grid.y());
    terms_.push_back({std::move(grid), x, y});
  }
}

double AttentionCurve::physics_us(const AttentionShape& shape) const {
  const auto tokens = static_cast<double>(shape.batch * shape.sequence);
  const auto batch_heads = static_cast<double>(shape.batch * shape.heads);
  const double query_tiles = std::ceil(static_cast<double>(shape.sequence) / tile_rows_);
  // Query tile number q of a sequence meets q key tiles: the triangle below the diagonal.
  const double key_tiles = query_tiles * (query_tiles + 1) / 2;
  const double average =
      batch_heads * (tile_us_ * key_tiles + block_us_ * query_tiles) / sms_;
  const double longest = tile_us_ * query_tiles + block_us_;
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
  return std::pow(std::pow(launch_us_, floor_power_) + std::pow(core, floor_power_),
                  1 / floor_power_);
}

Estimate AttentionCurve::estimate(const AttentionShape& shape, bool backward) const {
  check_shape(shape);
  std::array<double, variable_count> variables{};
  const auto log2_of = [](std::int64_t value) { return std::log2(static_cast<double>(value)); };
  variables[sequence] = log2_of(shape.sequence);
  variables[batch_heads] = log2_of(shape.batch * shape.heads);
  variables[kv_heads] = log2_of(shape.kv_heads);
  variables[group] = log2_of(shape.heads / shape.kv_heads);
  variables[batch] = log2_of(shape.batch);
  double correction = 0;
  for (const Term& term : terms_) {
    correction += term.grid.at(variables.at(term.x), variables.at(term.y));
  }
  const double forward_us = physics_us(shape) * std::exp(correction);
  const double octaves =
      std::max(variables[sequence] - std::log2(longest_), 0.0) +
      std::max(variables[batch_heads] - std::log2(most_batch_heads_), 0.0);
  Estimate estimate;
  // The backward pass rests on a ratio of FLOPs alone: its bar is one octave wider.
  const double widen = widening(octaves + (backward ? 1 : 0));
  const double factor = backward ? kBackwardOverForward : 1;
  residual_.apply(forward_us, forward_us, widen, estimate);
  estimate.time_us *= factor;
  estimate.time_us_p05 *= factor;
  estimate.time_us_p95 *= factor;
  estimate.origin = backward ? Origin::assumed : origin_;
  estimate.support = octaves > 0 ? Support::extrapolated : Support::interpolated;
  return estimate;
}

}  // namespace moesim::profile
