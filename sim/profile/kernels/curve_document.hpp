#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "sim/base/formats/document.hpp"
#include "sim/profile/kernels/log_grid.hpp"

// What the documents of curves by tiles (gemm, expert-ffn, attention) have in common.
namespace moesim::profile {

// How far beyond the measured sizes counts of tiles and waves are trusted to carry, in powers of
// two.
inline constexpr double furthest_octaves = 4;

// What a curve was measured at, along one variable.
struct CurveRange {
  double low = 0;
  double high = 0;
  double octaves_outside(double value) const;  // 0: inside
  double inside(double value) const;           // the nearest that was measured
};

// Reads [lowest, highest]: at least `least`, or above 0 where that is 0. Errors name file and key.
CurveRange read_range(const Node& node, const std::string& key, double least);

// A smooth correction, in log time, over two of a curve's variables.
struct CorrectionTerm {
  LogGrid grid;
  std::size_t x;  // indices of variables
  std::size_t y;
  double at(std::span<const double> variables) const { return grid.at(variables[x], variables[y]); }
};

// Reads a LogGrid over two of the variables of these names. Errors name file and key.
CorrectionTerm read_term(const Node& item, std::span<const char* const> variables);

// The index of the input of trees that "x" names. Errors name file and key.
std::size_t read_input(const Node& item, std::span<const char* const> inputs);

}  // namespace moesim::profile
