#include "sim/profile/kernels/gemm_curve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"

namespace moesim::profile {

struct GemmCurve::Query {
  double m;
  double n;
  double k;
  double memory_us = 0;
  double memory_powered = 0;  // memory time to the power that overlaps it with compute
};

std::vector<GemmCurve::Kernel> GemmCurve::read_kernels(const Node& node) {
  constexpr std::array<const char*, 8> columns = {
      "rows",    "columns",        "step_us",        "tile_us",
      "overlap", "choice_step_us", "choice_tile_us", "choice_overlap"};
  std::array<std::vector<double>, columns.size()> table;
  for (std::size_t column = 0; column < columns.size(); ++column) {
    table.at(column) = node.numbers(columns.at(column));
    if (table.at(column).size() != table[0].size() || table.at(column).empty()) {
      node.fail("expected one figure per kernel", columns.at(column));
    }
    for (const double value : table.at(column)) {
      const bool share = column == 4 || column == 7;
      if (!(value >= 0 && value <= (share ? 1.0 : std::numeric_limits<double>::max()))) {
        node.fail(share ? "expected shares in 0..1" : "expected figures >= 0", columns.at(column));
      }
    }
  }
  std::vector<Kernel> kernels;
  for (std::size_t row = 0; row < table[0].size(); ++row) {
    if (table[0][row] < 1 || table[1][row] < 1) node.fail("expected tiles of at least 1", "rows");
    kernels.push_back({table[0][row],
                       table[1][row],
                       {table[2][row], table[3][row], table[4][row]},
                       {table[5][row], table[6][row], table[7][row]}});
  }
  return kernels;
}

void GemmCurve::read_corrections(const Node& node) {
  m_knots_ = read_knots(node, "m_knots");
  n_knots_ = read_knots(node, "n_knots");
  k_knots_ = read_knots(node, "k_knots");
  grid_ = node.numbers("values");
  if (grid_.size() != m_knots_.size() * n_knots_.size() * k_knots_.size()) {
    node.fail("expected one value per triple of knots", "values");
  }
  constexpr std::array<const char*, variable_count> variables = {"log2_idle", "log2_waves",
                                                                 "log2_k"};
  for (const Node& item : node.items("terms")) {
    CorrectionTerm smooth = read_term(item, variables);
    const std::string weight = item.text_or("weight", "");
    if (!weight.empty() && weight != "compute_share") {
      item.fail("unknown weight '" + weight + "'; known: compute_share", "weight");
    }
    terms_.push_back(
        {item.positive("rows"), item.positive("columns"), std::move(smooth), !weight.empty()});
  }
  if (!node.has("trees")) return;
  const Node trees = node.at("trees");
  for (const Node& item : trees.items("inputs")) tree_inputs_.push_back(read_tree_input(item));
  trees_ = CorrectionTrees(trees, tree_inputs_.size());
}

GemmCurve::TreeInput GemmCurve::read_tree_input(const Node& node) {
  constexpr std::array<const char*, 12> names = {
      "log2_m",     "log2_n",         "log2_k",           "log2_mn",
      "log2_nk",    "log2_mk",        "log2_mnk",         "log2_us",
      "log2_waves", "log2_part_wave", "log2_row_padding", "log2_column_padding"};
  TreeInput input{static_cast<Asked>(read_input(node, names))};
  const bool waves = input.asked == Asked::log2_waves || input.asked == Asked::log2_part_wave;
  if (waves || input.asked == Asked::log2_row_padding) input.rows = node.positive("rows");
  if (waves || input.asked == Asked::log2_column_padding) input.columns = node.positive("columns");
  return input;
}

GemmCurve::GemmCurve(const Node& node) : residual_(node.at("residual")) {
  const Node physics = node.at("physics");
  const std::array<std::pair<const char*, double*>, 15> figures = {
      {{"sms", &sms_},
       {"step", &step_},
       {"launch_us", &launch_us_},
       {"dram_bytes_per_us", &dram_bytes_per_us_},
       {"l2_bytes_per_us", &l2_bytes_per_us_},
       {"l2_bytes", &l2_bytes_},
       {"l2_sharpness", &l2_sharpness_},
       {"weight_copies", &weight_copies_},
       {"ramp_us", &ramp_us_},
       {"overlap_power", &overlap_power_},
       {"choice_power", &choice_power_},
       {"throttle", &throttle_},
       {"throttle_us", &throttle_us_},
       {"throttle_tflops", &throttle_tflops_},
       {"reduce_us", &taken_reduction_.us}}};
  for (const auto& [name, figure] : figures) *figure = physics.positive(name);
  taken_reduction_.us_per_element = physics.positive("reduce_us_per_element");
  element_bytes_ = physics.number_or("element_bytes", element_bytes_);
  input_us_per_element_ = physics.number_or("input_us_per_element", 0);
  if (!(element_bytes_ > 0)) physics.fail("expected a figure above 0", "element_bytes");
  if (!(input_us_per_element_ >= 0)) physics.fail("expected a figure >= 0", "input_us_per_element");
  believed_reduction_ = {physics.positive("choice_reduce_us"),
                         physics.positive("choice_reduce_us_per_element")};
  splits_ = physics.numbers("splits");
  if (splits_.empty() || *std::min_element(splits_.begin(), splits_.end()) < 1) {
    physics.fail("expected splits of at least 1", "splits");
  }
  kernels_ = read_kernels(node.at("kernels"));
  read_corrections(node.at("corrections"));
  m_range_ = read_range(node.at("valid"), "m", 1);
  n_range_ = read_range(node.at("valid"), "n", 1);
  k_range_ = read_range(node.at("valid"), "k", 1);
  if (node.at("valid").has("time_us")) least_us_ = read_range(node.at("valid"), "time_us", 1).low;
  origin_ = read_origin(node, "origin");
}

double GemmCurve::memory_us(const Query& query) const {
  const double weights = element_bytes_ * query.n * query.k;
  const double tokens = element_bytes_ * query.m * query.k;
  const double result = 2 * query.m * query.n;
  const double total = weights + tokens + result;
  const auto kept = [this](double held) {
    return 1 / (1 + std::pow(held / l2_bytes_, l2_sharpness_));
  };
  const double hot =
      weights * kept(weight_copies_ * weights + tokens + result) + (tokens + result) * kept(total);
  return hot / l2_bytes_per_us_ + (total - hot) / dram_bytes_per_us_ +
         ramp_us_ * total / (total + l2_bytes_);
}

double GemmCurve::candidate_us(const Query& query, const Kernel& kernel, double split,
                               bool believed) const {
  const Cost& cost = believed ? kernel.believed : kernel.taken;
  const double tiles = std::ceil(query.m / kernel.rows) * std::ceil(query.n / kernel.columns);
  const double waves = tiles * split / sms_;
  const double whole = std::ceil(waves);
  const double run = whole + cost.overlap * (std::max(waves, 1.0) - whole);
  const double steps = std::ceil(std::ceil(query.k / step_) / split);
  const double compute = run * (steps * cost.step_us + cost.tile_us);
  double us =
      std::pow(std::pow(compute, overlap_power_) + query.memory_powered, 1 / overlap_power_) +
      (launch_us_ + input_us_per_element_ * query.m * query.k);
  if (split > 1) {
    const Reduction& reduction = believed ? believed_reduction_ : taken_reduction_;
    us += reduction.us + query.m * query.n * split * reduction.us_per_element;
  }
  return us;
}

double GemmCurve::chosen_log_us(const Query& query) const {
  // A candidate this much less likely than the best changes no digit of the answer.
  constexpr double negligible = 1e-14;
  std::vector<double> believed;
  believed.reserve(kernels_.size() * splits_.size());
  for (const Kernel& kernel : kernels_) {
    for (const double split : splits_) {
      believed.push_back(candidate_us(query, kernel, split, true));
    }
  }
  const double lowest = *std::min_element(believed.begin(), believed.end());
  double sum = 0;
  double weight_sum = 0;
  for (std::size_t candidate = 0; candidate < believed.size(); ++candidate) {
    const double weight = std::pow(lowest / believed[candidate], choice_power_);
    if (weight < negligible) continue;
    const Kernel& kernel = kernels_[candidate / splits_.size()];
    const double split = splits_[candidate % splits_.size()];
    sum += weight * std::log(candidate_us(query, kernel, split, false));
    weight_sum += weight;
  }
  return sum / weight_sum;
}

// Sustained load lowers the clock: the time grows with the square of the load (power), the more
// so the longer the product lasts.
double GemmCurve::throttled(double log_us, const Query& query) const {
  const double us = std::exp(log_us);
  const double load = 2 * query.m * query.n * query.k / us / (1e6 * throttle_tflops_);
  return log_us + throttle_ * load * load * us / (us + throttle_us_);
}

double GemmCurve::grid_at(const Query& query) const {
  const std::array<Hat, 3> hats = {locate(m_knots_, std::log2(query.m)),
                                   locate(n_knots_, std::log2(query.n)),
                                   locate(k_knots_, std::log2(query.k))};
  double sum = 0;
  for (unsigned corner = 0; corner < 8; ++corner) {
    double weight = 1;
    std::array<std::size_t, 3> at{};
    for (unsigned axis = 0; axis < 3; ++axis) {
      const bool high = ((corner >> axis) & 1U) != 0;
      weight *= high ? hats.at(axis).share : 1 - hats.at(axis).share;
      at.at(axis) = hats.at(axis).low + (high ? 1 : 0);
    }
    sum += weight * grid_[(at[0] * n_knots_.size() + at[1]) * k_knots_.size() + at[2]];
  }
  return sum;
}

double GemmCurve::correction(const Query& query, double physics_log_us) const {
  const double compute_share = std::clamp(1 - query.memory_us / std::exp(physics_log_us), 0.0, 1.0);
  double sum = grid_at(query);
  for (const Term& term : terms_) {
    const double waves = std::ceil(query.m / term.rows) * std::ceil(query.n / term.columns) / sms_;
    std::array<double, variable_count> known{};
    known[log2_idle] =
        std::log2(std::ceil(waves) * sms_ * term.rows * term.columns / (query.m * query.n));
    known[log2_waves] = std::log2(waves);
    known[log2_k] = std::log2(query.k);
    sum += term.smooth.at(known) * (term.of_compute ? compute_share : 1);
  }
  return sum;
}

double GemmCurve::smooth(Query& query) const {
  query.memory_us = memory_us(query);
  query.memory_powered = std::pow(query.memory_us, overlap_power_);
  const double physics_log_us = throttled(chosen_log_us(query), query);
  return physics_log_us + correction(query, physics_log_us);
}

double GemmCurve::tree_input(const Query& query, double log_us, const TreeInput& input) const {
  const double row_tiles = std::ceil(query.m / input.rows);
  const double column_tiles = std::ceil(query.n / input.columns);
  const double waves = row_tiles * column_tiles / sms_;
  switch (input.asked) {
    case Asked::log2_m:
      return std::log2(query.m);
    case Asked::log2_n:
      return std::log2(query.n);
    case Asked::log2_k:
      return std::log2(query.k);
    case Asked::log2_mn:
      return std::log2(query.m * query.n);
    case Asked::log2_nk:
      return std::log2(query.n * query.k);
    case Asked::log2_mk:
      return std::log2(query.m * query.k);
    case Asked::log2_mnk:
      return std::log2(query.m * query.n * query.k);
    case Asked::log2_us:
      return log_us / std::log(2.0);
    case Asked::log2_waves:
      return std::log2(waves);
    case Asked::log2_part_wave:
      return std::log2(std::ceil(waves) / waves);
    case Asked::log2_row_padding:
      return std::log2(row_tiles * input.rows / query.m);
    case Asked::log2_column_padding:
      return std::log2(column_tiles * input.columns / query.n);
  }
  throw Error("gemm: an input of trees without a value");
}

// Beyond what was measured it is that of the border.
double GemmCurve::tree_correction(const Query& query, double log_us) const {
  if (tree_inputs_.empty()) return 0;
  Query inside{m_range_.inside(query.m), n_range_.inside(query.n), k_range_.inside(query.k)};
  if (inside.m != query.m || inside.n != query.n || inside.k != query.k) log_us = smooth(inside);
  std::vector<double> inputs;
  inputs.reserve(tree_inputs_.size());
  for (const TreeInput& input : tree_inputs_) inputs.push_back(tree_input(inside, log_us, input));
  return trees_.at(inputs);
}

Estimate GemmCurve::estimate(std::int64_t m, std::int64_t n, std::int64_t k) const {
  return known_->get({m, n, k}, [&] { return fresh_estimate(m, n, k); });
}

Estimate GemmCurve::fresh_estimate(std::int64_t m, std::int64_t n, std::int64_t k) const {
  if (m < 1 || n < 1 || k < 1) {
    throw UsageError(fmt::format("gemm {} x {} x {}: expected sizes of at least 1", m, n, k));
  }
  Query query{static_cast<double>(m), static_cast<double>(n), static_cast<double>(k)};
  const double octaves = m_range_.octaves_outside(query.m) + n_range_.octaves_outside(query.n) +
                         k_range_.octaves_outside(query.k);
  const double furthest =
      std::max(std::log2(query.n / n_range_.high), std::log2(query.k / k_range_.high));
  if (furthest > furthest_octaves) {
    throw NotMeasured(fmt::format(
        "gemm {} x {} x {}: more than {:g} times beyond the measured n {:g}..{:g}, k {:g}..{:g}; "
        "cut it into smaller products, or measure it",
        m, n, k, std::exp2(furthest_octaves), n_range_.low, n_range_.high, k_range_.low,
        k_range_.high));
  }
  // More rows are priced in equal pieces, each its own launch: waves only repeat.
  const double most_rows = m_range_.high * std::exp2(furthest_octaves);
  const double pieces = std::ceil(query.m / most_rows);
  query.m /= pieces;
  const double log_us = smooth(query);
  const double us = pieces * std::exp(log_us + tree_correction(query, log_us));
  const double shorter = std::max(std::log2(least_us_ / us), 0.0);
  Estimate estimate;
  residual_.apply(us, us, widening(octaves + shorter), estimate);
  estimate.origin = origin_;
  estimate.support = octaves + shorter > 0 ? Support::extrapolated : Support::interpolated;
  return estimate;
}

}  // namespace moesim::profile
