#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/base/formats/document.hpp"
#include "sim/profile/estimate.hpp"
#include "sim/profile/kernels/correction_trees.hpp"
#include "sim/profile/kernels/curve_document.hpp"
#include "sim/profile/kernels/known_products.hpp"
#include "sim/profile/residual.hpp"

namespace moesim::profile {

// The time of one matrix product C[m, n] = A[m, k] B[k, n], C in bf16, A and B of one data type, in
// a library of tile kernels (cuBLAS, CUTLASS, DeepGEMM). Physics:
// - a kernel cuts C into tiles, optionally k into splits; tiles run in waves over the SMs, each
//   tile a number of k-steps and a prologue (tile quantisation; waves may overlap in part);
// - the memory system moves the operands beside it: what fits L2 from there, the rest from DRAM
//   (the published sweeps alternate between several weight matrices but keep the activations, so
//   weights stay in L2 only if all their copies fit);
// - the library believes slightly different times and chooses by them, not quite sharply: the
//   answer is the choice-weighted mean of the candidates' log times;
// - the clock falls under sustained load;
// - where the measured call quantises A first, a time per element of A.
// Then small corrections in log time: a grid over (m, n, k), grids over the waves of some tile
// shapes (each times the share of the time that memory does not explain: beside memory, waves are
// hidden), and trees over all of these, for what kernels and their choice have beside. Operands are
// aligned (leading dimensions multiples of 8).
class GemmCurve {
 public:
  // Reads a curve of model "tile-kernels"; errors name file and key.
  explicit GemmCurve(const Node& node);

  // Throws UsageError for sizes below 1, NotMeasured for n or k beyond 16 times what was measured.
  // Between there and the measured sizes tile counts carry: efficiency stays what it was, in whole
  // waves, and the estimate is marked extrapolated, as are products shorter than the shortest that
  // was measured, if the document says so. For m beyond that it stays too.
  Estimate estimate(std::int64_t m, std::int64_t n, std::int64_t k) const;

  // The microseconds of an estimate in which the measured call casts A[m, k]; 0 for bf16.
  double cast_us(std::int64_t m, std::int64_t k) const {
    return input_us_per_element_ * static_cast<double>(m) * static_cast<double>(k);
  }

  const Residual& residual() const { return residual_; }

 private:
  // What a candidate takes, or what the choice believes it takes.
  struct Cost {
    double step_us;  // one step of k of one tile
    double tile_us;  // prologue and epilogue of a tile
    double overlap;  // 0: whole waves; 1: fractional ones
  };
  struct Kernel {
    double rows;     // of m
    double columns;  // of n
    Cost taken;
    Cost believed;
  };
  struct Reduction {
    double us;
    double us_per_element;
  };
  struct Query;
  // What a correction term may depend on: of its tile shape, log2 of whole waves over the work in
  // them and of the waves; log2 k.
  enum Variable { log2_idle, log2_waves, log2_k, variable_count };
  struct Term {
    double rows;
    double columns;
    CorrectionTerm smooth;
    bool of_compute;  // counts as far as the product waits for its tiles
  };
  // What the trees may ask of a product.
  enum class Asked {
    log2_m,
    log2_n,
    log2_k,
    log2_mn,
    log2_nk,
    log2_mk,
    log2_mnk,
    log2_us,              // without trees
    log2_waves,           // of tiles of some shape
    log2_part_wave,       // whole waves over waves
    log2_row_padding,     // whole tiles of m over m
    log2_column_padding,  // the same of n
  };
  struct TreeInput {
    Asked asked;
    double rows = 1;
    double columns = 1;
  };

  Estimate fresh_estimate(std::int64_t m, std::int64_t n, std::int64_t k) const;
  static std::vector<Kernel> read_kernels(const Node& node);
  void read_corrections(const Node& node);
  double smooth(
      Query& query) const;  // log microseconds without trees; sets the query's memory times
  static TreeInput read_tree_input(const Node& node);
  double tree_input(const Query& query, double log_us, const TreeInput& input) const;
  double tree_correction(const Query& query, double log_us) const;
  double memory_us(const Query& query) const;
  double candidate_us(const Query& query, const Kernel& kernel, double split, bool believed) const;
  double chosen_log_us(const Query& query) const;
  double throttled(double log_us, const Query& query) const;
  double correction(const Query& query, double physics_log_us) const;
  double grid_at(const Query& query) const;

  double sms_ = 0;
  double launch_us_ = 0;
  double element_bytes_ = 2;  // of A and B, scales included
  double input_us_per_element_ = 0;
  double dram_bytes_per_us_ = 0;
  double l2_bytes_per_us_ = 0;
  double l2_bytes_ = 0;
  double l2_sharpness_ = 0;
  double weight_copies_ = 0;
  double ramp_us_ = 0;
  double overlap_power_ = 0;
  double choice_power_ = 0;
  double throttle_ = 0;
  double throttle_us_ = 0;
  double throttle_tflops_ = 0;
  double step_ = 0;
  Reduction taken_reduction_{};
  Reduction believed_reduction_{};
  std::vector<double> splits_;
  std::vector<Kernel> kernels_;
  std::vector<double> m_knots_;
  std::vector<double> n_knots_;
  std::vector<double> k_knots_;
  std::vector<double> grid_;  // [m, n, k] knots, k fastest
  std::vector<Term> terms_;
  std::vector<TreeInput> tree_inputs_;
  CorrectionTrees trees_;
  CurveRange m_range_;
  CurveRange n_range_;
  CurveRange k_range_;
  double least_us_ = 0;  // shorter products were not measured
  Origin origin_ = Origin::published;
  Residual residual_;
  std::shared_ptr<KnownProducts> known_ = std::make_shared<KnownProducts>();
};

}  // namespace moesim::profile
