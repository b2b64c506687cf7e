#include "sim/profile/kernels/expert_ffn_curve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"

namespace moesim::profile {

namespace {

// The widest vector load of the kernels, in elements.
constexpr std::int64_t alignment = 16;

void check_sizes(std::int64_t rows, std::int64_t hidden, std::int64_t ffn, std::int64_t experts) {
  if (rows < 0 || hidden < 1 || ffn < 1 || experts < 1) {
    throw UsageError(fmt::format(
        "expert-ffn: {} rows, hidden {}, ffn {}, {} experts: expected rows of at least 0 and sizes "
        "of at least 1",
        rows, hidden, ffn, experts));
  }
  if (hidden % alignment != 0 || ffn % alignment != 0) {
    throw NotMeasured(fmt::format(
        "expert-ffn: hidden {}, ffn {}: the curve holds for multiples of {}; other sizes run up to "
        "twice as long; pad the sizes, or measure them",
        hidden, ffn, alignment));
  }
}

}  // namespace

void ExpertFfnCurve::read_kernels(const Node& node) {
  constexpr std::array<const char*, 5> columns = {"rows", "columns", "step_us", "tile_us",
                                                  "overlap"};
  std::array<std::vector<double>, columns.size()> table;
  for (std::size_t column = 0; column < columns.size(); ++column) {
    table.at(column) = node.numbers(columns.at(column));
    if (table.at(column).size() != table[0].size() || table.at(column).empty()) {
      node.fail("expected one figure per kernel", columns.at(column));
    }
    const double least = column < 2 ? 1 : 0;
    const double most = column == 4 ? 1 : std::numeric_limits<double>::max();
    for (const double value : table.at(column)) {
      if (!(value >= least && value <= most)) {
        node.fail(fmt::format("expected figures from {:g} to {:g}", least, most),
                  columns.at(column));
      }
    }
  }
  for (std::size_t row = 0; row < table[0].size(); ++row) {
    kernels_.push_back({table[0][row], table[1][row], table[2][row], table[3][row], table[4][row]});
  }
}

ExpertFfnCurve::ExpertFfnCurve(const Node& node) : residual_(node.at("residual")) {
  const Node physics = node.at("physics");
  const std::array<std::pair<const char*, double*>, 8> figures = {
      {{"sms", &sms_},
       {"step", &step_},
       {"launch_us", &launch_us_},
       {"dram_bytes_per_us", &dram_bytes_per_us_},
       {"row_bytes_per_us", &row_bytes_per_us_},
       {"expert_us", &expert_us_},
       {"overlap_power", &overlap_power_},
       {"choice_power", &choice_power_}}};
  for (const auto& [name, figure] : figures) *figure = physics.positive(name);
  weight_bytes_ = physics.number_or("weight_bytes", weight_bytes_);
  input_bytes_ = physics.number_or("input_bytes", input_bytes_);
  if (!(weight_bytes_ > 0)) physics.fail("expected a figure above 0", "weight_bytes");
  if (!(input_bytes_ > 0)) physics.fail("expected a figure above 0", "input_bytes");
  read_kernels(node.at("kernels"));
  constexpr std::array<const char*, variable_count> variables = {"log2_rows_per_expert", "log2_ffn",
                                                                 "log2_experts", "log2_hidden"};
  for (const Node& item : node.items("corrections")) terms_.push_back(read_term(item, variables));
  if (node.has("trees")) {
    const Node trees = node.at("trees");
    for (const Node& item : trees.items("inputs")) tree_inputs_.push_back(read_tree_input(item));
    trees_ = CorrectionTrees(trees, tree_inputs_.size());
  }
  const Node valid = node.at("valid");
  rows_range_ = read_range(valid, "rows_per_expert", 0);
  hidden_range_ = read_range(valid, "hidden", 0);
  ffn_range_ = read_range(valid, "ffn", 0);
  experts_range_ = read_range(valid, "experts", 0);
  origin_ = read_origin(node, "origin");
  balanced_origin_ = node.has("balanced_origin") ? read_origin(node, "balanced_origin") : origin_;
  if (node.has("tuned_sizes")) {
    tuned_sizes_ = read_pairs(node.at("tuned_sizes"), "experts", "ffn");
  }
  if (node.has("new_sizes")) read_new_sizes(node.at("new_sizes"));
}

std::set<std::pair<std::int64_t, std::int64_t>> ExpertFfnCurve::read_pairs(
    const Node& node, const std::string& first, const std::string& second) {
  const std::vector<double> one = node.numbers(first);
  const std::vector<double> other = node.numbers(second);
  if (one.size() != other.size()) {
    node.fail(fmt::format("expected one figure per figure of '{}'", first), second);
  }
  std::set<std::pair<std::int64_t, std::int64_t>> pairs;
  for (std::size_t at = 0; at < one.size(); ++at) {
    pairs.emplace(std::llround(one[at]), std::llround(other[at]));
  }
  return pairs;
}

void ExpertFfnCurve::read_new_sizes(const Node& node) {
  measured_sizes_ = read_pairs(node, "hidden", "ffn");
  of_new_sizes_.emplace(node.at("residual"));
}

const Residual& ExpertFfnCurve::residual_of(std::int64_t hidden, std::int64_t ffn) const {
  return of_new_sizes_ && !measured_sizes_.contains({hidden, ffn}) ? *of_new_sizes_ : residual_;
}

ExpertFfnCurve::TreeInput ExpertFfnCurve::read_tree_input(const Node& node) const {
  constexpr std::array<const char*, 15> names = {"log2_rows_per_expert",
                                                 "log2_rows",
                                                 "log2_ffn",
                                                 "log2_hidden",
                                                 "log2_experts",
                                                 "log2_active",
                                                 "log2_work",
                                                 "log2_weights",
                                                 "log2_us",
                                                 "tuned",
                                                 "log2_up_waves",
                                                 "log2_up_part_wave",
                                                 "log2_down_waves",
                                                 "log2_down_part_wave",
                                                 "log2_block_padding"};
  TreeInput input{static_cast<Asked>(read_input(node, names))};
  if (input.asked < Asked::log2_up_waves) return input;
  const double kernel = node.number("kernel");
  for (std::size_t known = 0; known < kernels_.size(); ++known) {
    if (kernel == static_cast<double>(known)) {
      input.kernel = known;
      return input;
    }
  }
  node.fail(fmt::format("expected the number of a kernel, below {}", kernels_.size()), "kernel");
}

double ExpertFfnCurve::tree_input(const TreeInput& input, const Load& load, double hidden,
                                  double ffn, double log_us) const {
  const Kernel& tile = kernels_[input.kernel];
  const double blocks = load.blocks[input.kernel];
  const double up = blocks * std::ceil(2 * ffn / tile.columns) / sms_;
  const double down = blocks * std::ceil(hidden / tile.columns) / sms_;
  switch (input.asked) {
    case Asked::log2_rows_per_expert:
      return std::log2(load.rows / load.experts);
    case Asked::log2_rows:
      return std::log2(load.rows);
    case Asked::log2_ffn:
      return std::log2(ffn);
    case Asked::log2_hidden:
      return std::log2(hidden);
    case Asked::log2_experts:
      return std::log2(load.experts);
    case Asked::log2_active:
      return std::log2(load.active);
    case Asked::log2_work:
      return std::log2(load.rows * ffn * hidden);
    case Asked::log2_weights:
      return std::log2(load.active * ffn * hidden);
    case Asked::log2_us:
      return log_us / std::log(2.0);
    case Asked::tuned:
      return tuned_sizes_.contains({std::llround(load.experts), std::llround(ffn)}) ? 1 : 0;
    case Asked::log2_up_waves:
      return std::log2(up);
    case Asked::log2_up_part_wave:
      return std::log2(std::ceil(up) / up);
    case Asked::log2_down_waves:
      return std::log2(down);
    case Asked::log2_down_part_wave:
      return std::log2(std::ceil(down) / down);
    case Asked::log2_block_padding:
      return std::log2(blocks * tile.rows / load.rows);
  }
  throw Error("expert-ffn: an input of trees without a value");
}

void ExpertFfnCurve::add(Load& load, double experts, double rows) const {
  load.experts += experts;
  if (rows <= 0) return;
  load.rows += experts * rows;
  load.active += experts;
  for (std::size_t kernel = 0; kernel < kernels_.size(); ++kernel) {
    load.blocks[kernel] += experts * std::ceil(rows / kernels_[kernel].rows);
  }
}

// One grouped product [rows, deep] x [deep, wide].
double ExpertFfnCurve::product_us(const Load& load, std::size_t kernel, double deep,
                                  double wide) const {
  const Kernel& tile = kernels_[kernel];
  const double waves = load.blocks[kernel] * std::ceil(wide / tile.columns) / sms_;
  const double whole = std::ceil(waves);
  const double run = whole + tile.overlap * (std::max(waves, 1.0) - whole);
  const double compute = run * (std::ceil(deep / step_) * tile.step_us + tile.tile_us);
  const double moved =
      weight_bytes_ * load.active * wide * deep + load.rows * (2 * wide + input_bytes_ * deep);
  const double memory = moved / dram_bytes_per_us_;
  return std::pow(std::pow(compute, overlap_power_) + std::pow(memory, overlap_power_),
                  1 / overlap_power_);
}

double ExpertFfnCurve::chosen_log_us(const Load& load, double hidden, double ffn) const {
  // The activation reads 2 ffn and writes ffn per row; the sum reads and writes hidden.
  const double between = 2 * load.rows * (3 * ffn + 2 * hidden) / row_bytes_per_us_;
  std::vector<double> times;
  times.reserve(kernels_.size());
  for (std::size_t kernel = 0; kernel < kernels_.size(); ++kernel) {
    times.push_back(product_us(load, kernel, hidden, 2 * ffn) +
                    product_us(load, kernel, ffn, hidden) + launch_us_ + between +
                    load.active * expert_us_);
  }
  const double lowest = *std::min_element(times.begin(), times.end());
  double sum = 0;
  double weight_sum = 0;
  for (const double time : times) {
    const double weight = std::pow(lowest / time, choice_power_);
    sum += weight * std::log(time);
    weight_sum += weight;
  }
  return sum / weight_sum;
}

double ExpertFfnCurve::octaves_outside(const Load& load, double hidden, double ffn) const {
  const std::array<std::pair<const CurveRange*, double>, 4> asked = {
      {{&rows_range_, load.rows / load.experts},
       {&hidden_range_, hidden},
       {&ffn_range_, ffn},
       {&experts_range_, load.experts}}};
  double octaves = 0;
  for (const auto& [range, value] : asked) {
    const double outside = range->octaves_outside(value);
    if (outside > furthest_octaves) {
      throw NotMeasured(fmt::format(
          "expert-ffn: {:g} rows over {:g} experts, hidden {:g}, ffn {:g}: more than {:g} times "
          "outside the measured rows per expert {:g}..{:g}, hidden {:g}..{:g}, ffn {:g}..{:g}, "
          "experts {:g}..{:g}; use GEMMs, or measure it",
          load.rows, load.experts, hidden, ffn, std::exp2(furthest_octaves), rows_range_.low,
          rows_range_.high, hidden_range_.low, hidden_range_.high, ffn_range_.low, ffn_range_.high,
          experts_range_.low, experts_range_.high));
    }
    octaves += outside;
  }
  return octaves;
}

Estimate ExpertFfnCurve::at_load(const Load& load, std::int64_t hidden, std::int64_t ffn) const {
  Estimate estimate;
  estimate.origin = load.balanced ? balanced_origin_ : origin_;
  if (load.rows <= 0) {  // the kernels are launched and find nothing to do
    residual_.apply(launch_us_, launch_us_, 1, estimate);
    estimate.support = Support::extrapolated;
    return estimate;
  }
  const auto wide = static_cast<double>(hidden);
  const auto inner = static_cast<double>(ffn);
  const double octaves = octaves_outside(load, wide, inner);
  std::array<double, variable_count> known{};
  known[log2_rows_per_expert] = std::log2(load.rows / load.experts);
  known[log2_ffn] = std::log2(inner);
  known[log2_experts] = std::log2(load.experts);
  known[log2_hidden] = std::log2(wide);
  double log_us = chosen_log_us(load, wide, inner);
  for (const CorrectionTerm& term : terms_) log_us += term.at(known);
  std::vector<double> inputs;
  inputs.reserve(tree_inputs_.size());
  for (const TreeInput& input : tree_inputs_) {
    inputs.push_back(tree_input(input, load, wide, inner, log_us));
  }
  const double us = std::exp(log_us + trees_.at(inputs));
  residual_of(hidden, ffn).apply(us, us, widening(octaves), estimate);
  estimate.support = octaves > 0 ? Support::extrapolated : Support::interpolated;
  return estimate;
}

Estimate ExpertFfnCurve::estimate(std::int64_t rows, std::int64_t hidden, std::int64_t ffn,
                                  std::int64_t experts) const {
  check_sizes(rows, hidden, ffn, experts);
  Load load;
  load.blocks.assign(kernels_.size(), 0);
  const std::int64_t each = rows / experts;
  const std::int64_t more = rows % experts;  // experts that take one row more
  add(load, static_cast<double>(experts - more), static_cast<double>(each));
  if (more > 0) add(load, static_cast<double>(more), static_cast<double>(each + 1));
  return at_load(load, hidden, ffn);
}

Estimate ExpertFfnCurve::estimate(std::span<const std::int64_t> rows_per_expert,
                                  std::int64_t hidden, std::int64_t ffn) const {
  const auto count = static_cast<std::int64_t>(rows_per_expert.size());
  check_sizes(0, hidden, ffn, count);
  Load load;
  load.blocks.assign(kernels_.size(), 0);
  for (const std::int64_t rows : rows_per_expert) {
    check_sizes(rows, hidden, ffn, count);
    add(load, 1, static_cast<double>(rows));
  }
  const auto [least, most] = std::minmax_element(rows_per_expert.begin(), rows_per_expert.end());
  load.balanced = *most - *least <= 1;
  return at_load(load, hidden, ffn);
}

}  // namespace moesim::profile
