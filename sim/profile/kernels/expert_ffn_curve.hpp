#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/formats/document.hpp"
#include "sim/profile/estimate.hpp"
#include "sim/profile/kernels/correction_trees.hpp"
#include "sim/profile/kernels/curve_document.hpp"
#include "sim/profile/residual.hpp"

namespace moesim::profile {

// The time of the SwiGLU FFNs of a GPU's local experts, forward, in the fused kernels of serving
// engines: a grouped product [rows, hidden] x [hidden, 2 ffn], the activation, a grouped
// product [rows, ffn] x [ffn, hidden], the weighted sum. Physics: each expert's rows are cut into
// blocks of a kernel's tile height, the last one part empty; tiles run in waves over the SMs; the
// weights of every expert that has rows and all activations pass through memory beside them; the
// kernel is chosen by time, not quite sharply. Then small corrections in log time: grids, and trees
// for what kernels and their choice have beside.
class ExpertFfnCurve {
 public:
  // Reads a curve of model "grouped-tiles"; errors name file and key.
  explicit ExpertFfnCurve(const Node& node);

  // `rows` in total, spread evenly over `experts`. Throws UsageError for negative rows and sizes
  // below 1, NotMeasured for an ffn or hidden size that is no multiple of 16 (such kernels run up
  // to twice as long; none is fitted) or far beyond what was measured.
  Estimate estimate(std::int64_t rows, std::int64_t hidden, std::int64_t ffn,
                    std::int64_t experts) const;
  // The same with each expert's own number of rows.
  Estimate estimate(std::span<const std::int64_t> rows_per_expert, std::int64_t hidden,
                    std::int64_t ffn) const;

  // The errors at the sizes that were measured. Other pairs of hidden and FFN size have errors of
  // their own, if the document says which ("new_sizes"): engines tune their tiles size by size.
  const Residual& residual() const { return residual_; }

 private:
  struct Kernel {
    double rows;  // of one expert, per block
    double columns;
    double step_us;  // one step of the inner dimension of one tile
    double tile_us;  // prologue and epilogue of a tile
    double overlap;  // 0: whole waves; 1: fractional ones
  };
  struct Load {
    double rows = 0;
    double experts = 0;
    double active = 0;           // experts that have rows
    std::vector<double> blocks;  // by kernel
    bool balanced = true;
  };
  enum Variable { log2_rows_per_expert, log2_ffn, log2_experts, log2_hidden, variable_count };
  static std::set<std::pair<std::int64_t, std::int64_t>> read_pairs(const Node& node,
                                                                    const std::string& first,
                                                                    const std::string& second);
  void read_new_sizes(const Node& node);
  const Residual& residual_of(std::int64_t hidden, std::int64_t ffn) const;
  // What the trees may ask of a load.
  enum class Asked {
    log2_rows_per_expert,
    log2_rows,
    log2_ffn,
    log2_hidden,
    log2_experts,
    log2_active,
    log2_work,     // rows x ffn x hidden
    log2_weights,  // active x ffn x hidden
    log2_us,       // without trees
    tuned,         // 1 at the sizes that the engine has tuned tiles for, 0 at others
    // The first product (up) and the second one, in tiles of one kernel:
    log2_up_waves,
    log2_up_part_wave,  // whole waves over waves
    log2_down_waves,
    log2_down_part_wave,
    log2_block_padding,  // rows of its blocks over rows
  };
  struct TreeInput {
    Asked asked;
    std::size_t kernel = 0;
  };
  void read_kernels(const Node& node);
  TreeInput read_tree_input(const Node& node) const;
  double tree_input(const TreeInput& input, const Load& load, double hidden, double ffn,
                    double log_us) const;
  void add(Load& load, double experts, double rows) const;
  double product_us(const Load& load, std::size_t kernel, double deep, double wide) const;
  double chosen_log_us(const Load& load, double hidden, double ffn) const;
  double octaves_outside(const Load& load, double hidden, double ffn) const;
  Estimate at_load(const Load& load, std::int64_t hidden, std::int64_t ffn) const;

  double sms_ = 0;
  double step_ = 0;
  double launch_us_ = 0;
  double weight_bytes_ = 2;  // of one weight, scales included
  double input_bytes_ = 2;   // of one element that enters a product
  double dram_bytes_per_us_ = 0;
  double row_bytes_per_us_ = 0;
  double expert_us_ = 0;
  double overlap_power_ = 0;
  double choice_power_ = 0;
  std::vector<Kernel> kernels_;
  std::vector<CorrectionTerm> terms_;
  std::vector<TreeInput> tree_inputs_;
  CorrectionTrees trees_;
  CurveRange rows_range_;  // per expert
  CurveRange hidden_range_;
  CurveRange ffn_range_;
  CurveRange experts_range_;
  Origin origin_ = Origin::published;
  Origin balanced_origin_ = Origin::published;
  Residual residual_;
  std::optional<Residual> of_new_sizes_;
  std::set<std::pair<std::int64_t, std::int64_t>> measured_sizes_;  // (hidden, ffn)
  std::set<std::pair<std::int64_t, std::int64_t>> tuned_sizes_;     // (experts, ffn)
};

}  // namespace moesim::profile
