#pragma once

#include "kernels/base/vector.cuh"
#include "kernels/experts/arguments.hpp"

// The gated activation of SwiGLU (Shazeer 2020), a = silu(g) u with silu(g) = g s, s = 1 / (1 +
// e^-g), and its backward: dL/dg = dL/da u s (1 + g (1 - s)), dL/du = dL/da g s. One thread per 16
// bytes of each operand and step of the grid; 6 bytes an element forward, 10 backward.
namespace moesim::kernels::experts {

inline constexpr int swiglu_threads = 256;

// The arithmetic is fp32 with the fast exponential and division: within 2^-20 of itself, far below
// the rounding to bf16.
MOESIM_DEVICE float sigmoid(float x) { return fast_divide(1.0F, 1.0F + fast_exp(-x)); }

// Which pieces of 16 bytes: of row `piece / (ffn / 8)`, 32 bits throughout (launches see to it).
struct SwigluPlace {
  std::int64_t gate;
  std::int64_t up;
};

MOESIM_DEVICE SwigluPlace swiglu_place(std::uint32_t piece, std::uint32_t row_pieces) {
  const std::uint32_t row = piece / row_pieces;
  const std::int64_t gate = std::int64_t{row} * row_pieces + piece;  // 2 row ffn / 8 + column
  return {gate, gate + row_pieces};
}

MOESIM_KERNEL(swiglu_threads)
swiglu(SwigluArguments in) {
  const auto row_pieces = static_cast<std::uint32_t>(in.ffn / 8);
  const auto pieces = static_cast<std::uint32_t>(in.rows) * row_pieces;
  const auto* hidden = static_cast<const Vector16*>(in.hidden);
  auto* out = static_cast<Vector16*>(in.activated);
  const auto step = static_cast<std::uint32_t>(grid_blocks() * block_threads());
  auto piece = static_cast<std::uint32_t>(block_index() * block_threads() + thread_index());
  MOESIM_UNROLL(2)
  for (; piece < pieces; piece += step) {
    const SwigluPlace at = swiglu_place(piece, row_pieces);
    float gate[8], up[8];
    unpack<Bfloat16>(load_constant(hidden + at.gate), gate);
    unpack<Bfloat16>(load_constant(hidden + at.up), up);
    MOESIM_UNROLL_ALL
    for (int element = 0; element < 8; ++element) {
      gate[element] *= sigmoid(gate[element]) * up[element];
    }
    out[piece] = pack<Bfloat16>(gate);
  }
}

MOESIM_KERNEL(swiglu_threads)
swiglu_backward(SwigluBackwardArguments in) {
  const auto row_pieces = static_cast<std::uint32_t>(in.ffn / 8);
  const auto pieces = static_cast<std::uint32_t>(in.rows) * row_pieces;
  const auto* hidden = static_cast<const Vector16*>(in.hidden);
  const auto* gradient = static_cast<const Vector16*>(in.gradient);
  auto* out = static_cast<Vector16*>(in.hidden_gradient);
  const auto step = static_cast<std::uint32_t>(grid_blocks() * block_threads());
  auto piece = static_cast<std::uint32_t>(block_index() * block_threads() + thread_index());
  for (; piece < pieces; piece += step) {
    const SwigluPlace at = swiglu_place(piece, row_pieces);
    float gate[8], up[8], upstream[8];
    unpack<Bfloat16>(load_constant(hidden + at.gate), gate);
    unpack<Bfloat16>(load_constant(hidden + at.up), up);
    unpack<Bfloat16>(load_constant(gradient + piece), upstream);
    MOESIM_UNROLL_ALL
    for (int element = 0; element < 8; ++element) {
      const float s = sigmoid(gate[element]);
      const float d = upstream[element];
      const float gate_gradient = d * up[element] * s * multiply_add(gate[element], 1.0F - s, 1.0F);
      up[element] = d * gate[element] * s;
      gate[element] = gate_gradient;
    }
    out[at.gate] = pack<Bfloat16>(gate);
    out[at.up] = pack<Bfloat16>(up);
  }
}

}  // namespace moesim::kernels::experts
